"""The field `structured_outputs` of all bodies that have it."""

from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Text

STRUCTURED_OUTPUTS: FieldType = Nullable(
    Record(
        {
            "json": Nullable(AnyOf((Text(), MapOf(Anything())))),
            "regex": Nullable(Text()),
            "choice": Nullable(ListOf(Text())),
            "grammar": Nullable(Text()),
            "json_object": Nullable(Flag()),
            "disable_any_whitespace": Flag(),
            "disable_additional_properties": Flag(),
            "whitespace_pattern": Nullable(Text()),
            "structural_tag": Nullable(Text()),
        },
        kind="dataclass_type",
        name="StructuredOutputsParams",
    )
)
