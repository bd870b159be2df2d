"""The decorator for properties of compiled classes, which plain Python ignores."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_attributes: Any) -> Any:
        """Decorate a class with properties that only the compiler reads: it finds the decorator by its name."""
        return lambda decorated: decorated
