"""The field of a request that limits repetition."""

from mockserve.protocol.reading.containers import Nullable, Record
from mockserve.protocol.reading.types import FieldType, Integer

REPETITION_DETECTION: FieldType = Nullable(
    Record(
        {"max_pattern_size": Integer(), "min_pattern_size": Integer(), "min_count": Integer()},
        kind="dataclass_type",
        name="RepetitionDetectionParams",
    )
)
