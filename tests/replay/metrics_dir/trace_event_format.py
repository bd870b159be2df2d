"""A check of chrome_trace.json against the rules of the Trace Event Format that Perfetto's importer applies."""

from collections import defaultdict
from typing import Any

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "args"},
    "b": {"name", "cat", "id", "ph", "ts", "pid"},
    "e": {"name", "cat", "id", "ph", "ts", "pid"},
    "s": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
    "t": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
}


def problems(trace: dict[str, Any]) -> list[str]:
    """Return what is wrong with a trace: fields, slices that overlap, events without an end, flows without a slice."""
    events = trace["traceEvents"]
    found = [f"{each} lacks fields" for each in events if not REQUIRED[each["ph"]] <= set(each)]
    # Perfetto merges a thread 0 with the thread whose number is that of its process.
    found += [
        f"{each} is of thread 0" for each in events if each.get("tid") == 0 and each.get("name") != "process_name"
    ]
    timed = [each for each in events if each["ph"] != "M"]
    found += [f"{each} has no instant" for each in timed if not isinstance(each["ts"], int) or each["ts"] < 0]
    slices = [each for each in events if each["ph"] == "X"]
    return found + _overlaps(slices) + _unbalanced(events) + _loose_flows(events, slices)


def _overlaps(slices: list[dict[str, Any]]) -> list[str]:
    ends: dict[tuple[int, int], int] = {}
    found = []
    for each in sorted(slices, key=lambda each: each["ts"]):
        track = each["pid"], each["tid"]
        if each["dur"] < 0 or each["ts"] < ends.get(track, 0):
            found.append(f"{each} overlaps the slice before it")
        ends[track] = each["ts"] + each["dur"]
    return found


def _unbalanced(events: list[dict[str, Any]]) -> list[str]:
    """Nested asynchronous events of one id are a stack."""
    stacks: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    found = []
    for each in events:
        stack = stacks[each.get("cat", ""), each.get("id", -1)]
        if each["ph"] == "b":
            if stack and each["ts"] < stack[-1][1]:
                found.append(f"{each} begins before the event around it")
            stack.append((each["name"], each["ts"]))
        elif each["ph"] == "e":
            name, began = stack.pop()
            if name != each["name"] or each["ts"] < began:
                found.append(f"{each} does not end {name}")
    return found + [f"{key} has no end" for key, stack in stacks.items() if stack]


def _loose_flows(events: list[dict[str, Any]], slices: list[dict[str, Any]]) -> list[str]:
    starts = {(each["pid"], each["tid"], each["ts"]) for each in slices}
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for each in events:
        if each["ph"] in "stf":
            flows[each["id"]].append(each)
    found = []
    for number, flow in flows.items():
        phases = "".join(each["ph"] for each in flow)
        if phases not in ("sf", "stf") and set(phases[1:-1]) != {"t"}:
            found.append(f"flow {number} is {phases}")
        if [each["ts"] for each in flow] != sorted(each["ts"] for each in flow):
            found.append(f"flow {number} goes back in time")
        found += [f"{each} is in no slice" for each in flow if (each["pid"], each["tid"], each["ts"]) not in starts]
    return found
