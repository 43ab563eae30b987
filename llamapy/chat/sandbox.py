"""The environment that chat templates run in: jinja2's immutable sandbox, closed further.

Three things pass through here with every step of a template: the clock and the sizes (`Budget`),
what may be touched (text, lists and dicts have a short list of methods), and whose text it is
(`Text`). A template cannot avoid it: calls, filters, operators and output are hooked by jinja2's
own means, loops, `~` and literals by rewriting the syntax tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from llamapy.chat import filters as chat_filters
from llamapy.chat.limits import ITEM, Budget
from llamapy.chat.tracked import TEMPLATE, Text, concat, has_user_text, holds
from llamapy.core.errors import TemplateError

STR_METHODS = frozenset({
    "capitalize", "casefold", "center", "count", "endswith", "find", "format", "format_map",
    "index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower",
    "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join", "ljust", "lower", "lstrip",
    "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rjust",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper", "zfill",
})  # fmt: skip
METHODS: dict[type, frozenset[str]] = {
    str: STR_METHODS,
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    int: frozenset(),
    float: frozenset({"is_integer"}),
}
MAX_BITS = 4096
PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<flags>[-+ #0-9.]*)[hlL]?(?P<type>[a-zA-Z%])")
PERCENT_WIDTH = re.compile(r"\d+(?=\.?\d*[hlL]?[a-zA-Z%])")
STAR = re.compile(r"%[^a-zA-Z%]*\*")


class ChatNamespace(Namespace):
    """jinja2's namespace without underscored names, and without a text that shows what is in it."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in (values := dict(*rest, **kwargs)):
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise TemplateError(f"the chat template sets {name!r} on a namespace")


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks answers for training: only its content."""

    tags = {"generation"}

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """All tokens of the template come by here: a good place to look at the clock."""
        budget: Budget = self.environment.budget  # type: ignore[attr-defined]
        return budget.each(stream)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Generator(CodeGenerator):
    """jinja2's code generator, looking at the clock."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.environment.budget.tick()  # type: ignore[attr-defined]
        return super().visit(node, *args, **kwargs)


class _Hooks(NodeTransformer):
    """Rewrites what jinja2 runs without asking the environment: loops, `~`, and literals."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter("_each", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter("_concat", nodes.List(node.nodes, lineno=node.lineno))

    def visit_List(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        if getattr(node, "ctx", "load") != "load":
            return node
        if all(isinstance(item, nodes.Const) for item in node.iter_child_nodes()):
            return node
        return _filter("_made", node)

    visit_Tuple = visit_Dict = visit_List


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """One environment for one template. `budget` must be set anew for every rendering."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    code_generator_class = _Generator

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # nothing runs before there is a budget
            finalize=_finalize,
            extensions=[GenerationTag, "jinja2.ext.loopcontrols"],
        )
        self.budget = Budget(0)
        self.globals.pop("lipsum")
        self.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
        self.globals["namespace"] = ChatNamespace
        for name in chat_filters.REMOVED:
            self.filters.pop(name)
        self.filters.update(chat_filters.replaced())
        self.filters = {name: self._guarded(f) for name, f in self.filters.items()}
        self.filters["_each"] = lambda items: self.budget.each(items)
        self.filters["_concat"] = lambda parts: self.concat(map(str, parts))
        self.filters["_made"] = self._made

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        tree = _Hooks().visit(source).set_environment(self)
        code: str = super()._generate(tree, *args, **kwargs)
        return code

    # -- sizes and whose text it is

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        """What jinja2 joins output with."""
        parts = list(parts)
        self.budget.tick()
        self.budget.spend(sum(map(len, parts)))
        return concat(parts)

    def _made(self, container: Any) -> Any:
        self.budget.weigh(container)
        return container

    def track(self, result: Any, inputs: Any) -> Any:
        """Account for a result. New text without a mask is the user's if any input was."""
        if isinstance(result, str):
            self.budget.spend(len(result))
            if not isinstance(result, Text) and has_user_text(inputs):
                return result if holds(inputs, result) else Text(result)
        elif isinstance(result, (list, tuple, dict)):
            self.budget.weigh(result)
        return result

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)  # which also copies jinja2's marks
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.tick()
            return self.track(function(*args, **kwargs), (args, kwargs))

        return guarded

    # -- what may be touched

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        if attribute.startswith("_"):
            raise SecurityError(f"reading {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)  # raises when it is used

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, allowed in METHODS.items():
            if isinstance(obj, kind):
                return attr in allowed or attr in getattr(type(obj), "_fields", ())
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.budget.tick()
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, str):
            for name in ("_loop_vars", "_block_vars"):  # jinja2's own, for functions with a context
                kwargs.pop(name, None)
            return self.call_str(receiver, obj.__name__, args, kwargs)
        self.budget.weigh(args)
        self.budget.weigh(kwargs)
        result = super().call(context, obj, *args, **kwargs)
        made_by_template = isinstance(obj, (Macro, LoopContext))  # its parts have their masks
        return self.track(result, () if made_by_template else (receiver, args, kwargs))

    def call_str(self, text: str, method: str, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Call a method of text: sizes are checked before, the mask is kept."""
        if method not in STR_METHODS:
            raise SecurityError(f"text has no method {method!r} here")
        if method == "join" and args:
            args = (list(self.budget.each(args[0])), *args[1:])
            sizes = sum(len(item) for item in args[0] if isinstance(item, str))
            self.budget.fits(sizes + len(text) * len(args[0]))
        elif method == "replace":
            old, new, *_ = *args, "", ""
            self.budget.fits(len(text) + str.count(text, old) * len(new))
        elif method in ("split", "rsplit", "splitlines"):
            self.budget.fits(ITEM * len(getattr(str, method)(text, *args, **kwargs)))
        elif method in ("center", "ljust", "rjust", "zfill"):
            chat_filters.count(args[0] if args else 0)
        if not isinstance(text, Text) and has_user_text((args, kwargs)):
            text = Text(text, TEMPLATE * len(text))
        return self.track(getattr(text, method)(*args, **kwargs), (text, args, kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if not isinstance(value, (MethodType, BuiltinMethodType)):
            return None
        text, name = value.__self__, value.__name__
        if not isinstance(text, str) or name not in ("format", "format_map"):
            return None

        def format_text(*args: Any, **kwargs: Any) -> str:
            if name == "format_map":
                return self.brace(text, (), args[0])
            return self.brace(text, args, kwargs)

        return format_text

    # -- operators

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Run `left operator right`."""
        self.budget.tick()
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return self.concat([left, right])
        if operator == "%" and isinstance(left, str):
            return self.percent(left, right)
        if operator == "*":
            self._check_product(left, right)
        if operator == "**":
            self._check_power(left, right)
        return self.track(self.binop_table[operator](left, right), (left, right))

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (str, list, tuple)) and isinstance(times, int):
                self.budget.fits(self.budget.weigh(many) * max(times, 0))

    @staticmethod
    def _check_power(left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(right, 0))

    def percent(self, template: str, values: Any) -> str:
        """`template % values`, each piece with its own mask."""
        found = list(PERCENT.finditer(template))
        computed = bool(STAR.search(template))
        self._check_format(template, "%", PERCENT_WIDTH.findall(template), values, computed)
        whole = str.__mod__(template, values)
        given = iter(values if isinstance(values, tuple) else (values,))
        parts: list[str] = []
        at = 0
        for m in found:
            parts.append(template[at : m.start()])
            at = m.end()
            if m["type"] == "%":
                parts.append("%")
                continue
            value = values[m["key"]] if m["key"] is not None else next(given)
            parts.append(_piece(value, f"%{m['flags']}{m['type']}" % (value,)))
        return self._formatted([*parts, template[at:]], whole, (template, values))

    def brace(self, template: str, args: tuple[Any, ...], kwargs: Any) -> str:
        """`template.format(*args, **kwargs)`, attributes guarded, each piece with its own mask."""
        formatter = SandboxedFormatter(self)
        fields = list(Formatter().parse(template))
        specs = "".join(spec or "" for _, _, spec, _ in fields)
        widths = re.findall(r"\d+", specs)
        self._check_format(template, "{", widths, (args, kwargs), "{" in specs)
        whole: str = formatter.vformat(template, args, kwargs)
        if has_user_text(template):
            return self._formatted([Text(whole)], whole, ())
        parts: list[str] = []
        auto = iter(range(len(args)))
        for literal, name, spec, conversion in fields:
            parts.append(literal)
            if name is not None:
                value, _ = formatter.get_field(name or str(next(auto)), args, kwargs)
                shown = formatter.format_field(
                    formatter.convert_field(value, conversion),  # type: ignore[arg-type]
                    spec or "",
                )
                parts.append(_piece(value, shown))
        return self._formatted(parts, whole, (args, kwargs))

    def _check_format(
        self, template: str, mark: str, widths: list[str], values: Any, computed: bool
    ) -> None:
        """TemplateError if formatting may make something huge."""
        if computed:
            raise TemplateError("the chat template formats with a computed width")
        widest = max(map(int, widths), default=0) + self.budget.weigh(values)
        self.budget.fits(len(template) + template.count(mark) * widest)

    def _formatted(self, parts: list[str], whole: str, inputs: Any) -> str:
        """The parts, if they are the whole; if not, the whole as one piece."""
        text = concat(parts)
        result = text if text == whole else _piece(inputs, whole)
        self.budget.spend(len(result))
        return result


def _piece(value: Any, shown: str) -> str:
    """What a formatted value shows: itself if it is text as it stands, else text of one owner."""
    if isinstance(value, str) and value == shown:
        return value
    return Text(shown) if has_user_text(value) else shown


def _check_bits(n_bits: int) -> None:
    if n_bits > MAX_BITS:
        raise TemplateError(f"the chat template makes a number of {n_bits} bits")


@pass_context
def _finalize(context: Context, value: Any) -> Any:
    """What `{{ }}` shows: text as it is, the text of anything else."""
    if isinstance(value, str):
        return value
    environment = context.environment
    assert isinstance(environment, ChatEnvironment)
    environment.budget.tick()
    return environment.track(str(value), value)
