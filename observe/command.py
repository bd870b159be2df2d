"""`blis observe`: put load on a server and record what it did."""

from observe.options import ObserveOptions

__all__ = ["ObserveOptions", "run"]


def run(options: ObserveOptions) -> int:
    """Run the measurement, write the recording, print the summary as JSON.

    Exit codes: 0 done, 1 nothing could be measured or written, 128 + n stopped by signal n. Bad input raises.
    """
    from traces.append_file import exclusive_writer, open_pipes

    with exclusive_writer(options.paths.header), open_pipes(options.paths.rows_and_companions):
        if not options.proxying.redact:
            return _run(options)
        from observe.errors import messages_through
        from traces.redaction import Redactor

        with messages_through(Redactor(options.proxying.redact).text):
            return _run(options)


def _run(options: ObserveOptions) -> int:
    if options.proxying.proxy:
        return _run_proxy(options)
    import sys
    from contextlib import nullcontext

    from observe.errors import RunError, print_message
    from observe.event_loop import allow_many_connections, run_loop
    from observe.measurement import measure
    from observe.on_ray.senders import PACKAGES, assign_nodes, nodes_of_cluster, ray_cluster
    from observe.workloads.plan import plan_of
    from observe.workloads.workload import remaining_schedule

    request_schedule = remaining_schedule(options, plan_of(options))
    if not request_schedule.plan:
        print_message(f"{options.paths.data} has all of the requests already, nothing is left to send")
        return 0
    allow_many_connections()
    result = sys.stdout  # which means something else while a Ray cluster is open
    try:
        # Before any signal is listened to: Ray would take SIGTERM away.
        with ray_cluster(options.ray_address, PACKAGES, options.processes) if options.ray else nullcontext():
            if options.ray:
                assign_nodes(nodes_of_cluster(), options.processes)  # refuses before a file is touched
            return run_loop(measure(options, request_schedule, result))
    except RunError as error:
        print_message(f"blis observe: error: {error}")
        return 1


def _run_proxy(options: ObserveOptions) -> int:
    import sys

    from observe.errors import RunError, print_message
    from observe.event_loop import allow_many_connections, run_loop
    from observe.proxy.command import record_through_proxy

    allow_many_connections()
    try:
        return run_loop(record_through_proxy(options, sys.stdout))
    except RunError as error:
        print_message(f"blis observe: error: {error}")
        return 1
