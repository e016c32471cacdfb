"""How the API pages read the sources: fields make a signature, and docstrings are plain text, not Markdown."""

import re
from typing import Any

from griffe import Class, Expr, ExprCall, Extension, Function, Module, Object, Parameter, ParameterKind, Parameters

SECTION = re.compile(r"(Args|Raises|Returns|Yields|Attributes):$")
STARRED = re.compile(r"(?<![*\w`])(\w+)\*(?![\w*])")  # y*(x), which Markdown takes for the beginning of emphasis
ROLE = re.compile(r":(?:class|func|meth|mod):`([^`]+)`")
COLUMNS = re.compile(r"\S {4,}\S|^ {8,}\S")


class Rookery(Extension):
    """Both of them, for the whole package."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Called when the package has been read."""
        read(pkg)


def read(at: Object) -> None:
    """Everything in this module or class."""
    if at.docstring:
        at.docstring.value = as_markdown(at.docstring.value)
    if isinstance(at, Class) and "__init__" not in at.members and has_fields(at):
        at.set_member("__init__", signature(at))
    for member in list(at.members.values()):
        if not member.is_alias:
            read(member)


def as_markdown(text: str) -> str:
    """Columns made by spaces stay columns, a star after a letter stays a star, and roles are names."""
    text = ROLE.sub(r"``\1``", text)
    blocks, in_section = [], False
    for block in text.split("\n\n"):
        lines = block.splitlines()
        in_section = any(SECTION.match(line) for line in lines) or (in_section and block.startswith(" "))
        is_code = block.startswith("    ") and not in_section
        if not is_code and not in_section and sum(bool(COLUMNS.search(line)) for line in lines) > 1:
            is_code, block = True, "\n".join("    " + line for line in lines)
        block = block.replace("``", "") if is_code else STARRED.sub(r"\1\\*", block)
        blocks.append(block)
    return "\n\n".join(blocks)


def has_fields(at: Class) -> bool:
    """Whether its fields are the parameters of its constructor, as those of Equinox modules and named tuples are."""
    return any(
        isinstance(base, Expr) and base.canonical_path in ("equinox.Module", "typing.NamedTuple")
        for kind in (at, *at.mro())
        for base in kind.bases
    )


def signature(at: Class) -> Function:
    """The constructor that is made of them: one parameter for each field, those of base classes first."""
    fields: dict[str, Parameter] = {}
    for kind in (*reversed(at.mro()), at):
        if "__init__" in kind.members and not kind.members["__init__"].labels & {"from fields"}:
            given = kind.members["__init__"].parameters
            fields = {each.name: each for each in given if each.name != "self"}
            continue
        for name, member in kind.members.items():
            if member.is_attribute and member.annotation is not None and "instance-attribute" in member.labels:
                fields[name] = Parameter(
                    name,
                    annotation=member.annotation,
                    kind=ParameterKind.positional_or_keyword,
                    default=default_of(member.value),
                )
    made = Function(
        "__init__",
        parent=at,
        parameters=Parameters(Parameter("self", kind=ParameterKind.positional_or_keyword), *fields.values()),
    )
    made.labels.add("from fields")
    return made


def default_of(value: Any) -> Any:
    """The default of a field: its value, or what ``eqx.field(default=...)`` says."""
    if isinstance(value, ExprCall) and str(value.function) == "eqx.field":
        return next((each.value for each in value.arguments if getattr(each, "name", "") == "default"), None)
    return value
