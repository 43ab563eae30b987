"""Templates that attack: each is stopped in time, small in memory, with a TemplateError."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from llamapy.chat.templates import ChatTemplate
from llamapy.core.errors import TemplateError

HI = [{"role": "user", "content": "hi there"}]
GROW = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def grow(start: str, step: str, use: str = "{{ ns.x }}") -> str:
    return GROW.replace("START", start).replace("STEP", step) + use


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that write": "{% for i in range(9999) %}{% for j in range(9999) %}{{ 1 }}{% endfor %}"
    "{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive loop": "{% for x in range(9) recursive %}{% if loop.depth < 40 %}"
    "{{ loop(range(9)) }}{% endif %}{% endfor %}",
    "call blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 30
    + "x"
    + "{% endcall %}" * 30,
    "slow steps": "{% set a = 'x' * 1000000 %}{% for i in range(99999) %}{% set b = a[::-1] %}"
    "{% endfor %}",
    "loop condition": "{% for i in range(99999) if i in range(0, 99999, 7)|list %}{% endfor %}",
}

HUGE = {
    "product": "{{ 'x' * 10**9 }}",
    "product of a list": "{% set a = [1] * 10**9 %}",
    "power": "{{ 9**99999999 }}",
    "squares": grow("3", "ns.x * ns.x"),
    "doubled by +": grow("'x'", "ns.x + ns.x"),
    "doubled by ~": grow("'x'", "ns.x ~ ns.x"),
    "doubled list": grow("[1]", "ns.x + ns.x"),
    "nested lists": grow("['lol']", "[ns.x, ns.x]"),
    "nested tuples": grow("(1,)", "(ns.x, ns.x)", "{{ ns.x|string }}"),
    "nested dicts": grow("{}", "{'a': ns.x, 'b': ns.x}", "{{ ns.x|tojson }}"),
    "nested by dict()": grow("1", "dict(a=ns.x, b=ns.x)"),
    "nested by map": grow("[1]", "[u, u]|map('default', ns.x)|list"),
    "nested by cycler": grow("1", "cycler(ns.x, ns.x).items"),
    "nested by varargs": "{% macro m(n) %}{% if n %}{{ m(n - 1, varargs, varargs) }}{% else %}"
    "{{ varargs }}{% endif %}{% endmacro %}{{ m(60, 1, 2) }}",
    "join": "{{ (range(99999)|list)|join('x' * 99999) }}",
    "join method": "{{ ('x' * 99999).join('y' * 99999) }}",
    "replace": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "replace method": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "center": "{{ 'x'|center(10**10) }}",
    "center method": "{{ 'x'.center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "indent": "{{ ('\n' * 99999)|indent(9999) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent computed": "{{ '%*d' % (1000000000, 1) }}",
    "percent nested": "{{ '%(a(b))1000000000d' % {'a(b)': 1} }}",
    "percent filter": "{{ '%1000000000d'|format(1) }}",
    "percent many": "{{ ('%(a)s' * 99999) % {'a': 'x' * 99999} }}",
    "brace": "{{ '{:1000000000}'.format(1) }}",
    "brace computed": "{{ '{:{}}'.format(1, 1000000000) }}",
    "brace many": "{{ ('{0}' * 99999).format('x' * 99999) }}",
    "round": "{{ 1.5|round(1000000000, 'ceil') }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "batch": "{{ [1]|batch(10**9, 1)|list }}",
    "sum": "{{ ([[1]] * 9999)|sum(start=[]) }}",
    "json indent": "{{ [[1]]|tojson(indent=10**9) }}",
    "json separators": "{{ (range(9999)|list)|tojson(separators=('x' * 99999, ':')) }}",
    "wordwrap": "{{ ('a ' * 99999)|wordwrap(1, true, 'x' * 99999) }}",
    "date": "{{ strftime_now('%1000000000d') }}",
    "macro output": "{% set b = 'x' * 1000000 %}{% macro m() %}{% for i in range(99999) %}{{ b }}"
    "{% endfor %}{% endmacro %}{{ m()|length }}",
    "set block": "{% set b = 'x' * 1000000 %}{% set c %}{% for i in range(99999) %}{{ b }}"
    "{% endfor %}{% endset %}",
    "output": "{% set b = 'x' * 1000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
    "many operands": "{% set b = 'x' * 1000000 %}{{ " + " ~ ".join(["b"] * 999) + " }}",
    "range": "{{ range(10**9)|list }}",
    "characters": "{{ (messages[0].content * 100000)|list|length }}",
    "split": "{{ ('x ' * 500000).split()|length }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "deep list": "{% set ns = namespace(x=[1]) %}{% for i in range(3000) %}"
    "{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "deep source": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "long source": "x" * 70_000,
}

FORBIDDEN = {
    "class": "{{ ''.__class__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "attr": "{{ ''|attr('__class__') }}",
    "getitem": "{{ messages['__class__'] }}",
    "map": "{{ [messages]|map(attribute='__class__')|list }}",
    "format": "{{ '{0.__class__}'.format('x') }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 'x'}) }}",
    "method": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "self": "{{ self._TemplateReference__context }}",
    "namespace": "{% set ns = namespace() %}{% set ns._Namespace__attrs = 1 %}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({}) }}",
    "encode": "{{ 'x'.encode() }}",
    "translate": "{{ 'x'.translate({120: 'y' * 100000}) }}",
    "to_bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "fromkeys": "{{ {}.fromkeys(range(999), 1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "lipsum": "{{ lipsum() }}",
    "unknown tag": "{% foo %}",
    "unknown filter": "{{ 1|nofilter }}",
    "syntax": "{% for %}",
    "division": "{{ 1 / 0 }}",
    "undefined": "{{ a.b.c }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_template_is_stopped(name: str) -> None:
    template = ChatTemplate(ENDLESS[name], time_limit=0.3)
    start = time.perf_counter()
    with pytest.raises(TemplateError, match="takes longer than"):
        template.render(HI)
    assert time.perf_counter() - start < 10  # without the limit: hours


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_value_is_refused(name: str) -> None:
    with pytest.raises(TemplateError) as error:
        ChatTemplate(HUGE[name], time_limit=20).render(HI)
    assert "takes longer" not in str(error.value)  # refused for its size, before it is made


@pytest.mark.parametrize("name", FORBIDDEN)
def test_what_is_not_allowed_is_refused(name: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(FORBIDDEN[name]).render(HI)


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits are of Unix")
def test_all_attacks_together_stay_small() -> None:
    """In a process of its own: at most 200 MB more than before, whatever is tried."""
    code = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from test_sandbox import ENDLESS, HI, HUGE
from llamapy.chat.templates import ChatTemplate
from llamapy.core.errors import TemplateError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for source in [*HUGE.values(), ENDLESS["slow steps"]]:
    try:
        ChatTemplate(source, time_limit=0.2).render(HI)
    except TemplateError:
        continue
    raise SystemExit(f"not refused: {source[:100]}")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""
    here = str(__file__).rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", code, here], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 200


def test_a_fault_names_the_line() -> None:
    with pytest.raises(TemplateError, match=r"^chat template, line 3: ZeroDivisionError"):
        ChatTemplate("a\nb\n{{ 1 / 0 }}").render(HI)
    with pytest.raises(TemplateError, match=r"^chat template, line 2: Encountered unknown tag"):
        ChatTemplate("a\n{% nonsense %}").render(HI)


def test_limits_grow_with_what_the_user_puts_in() -> None:
    long = "word " * 400_000  # 2 MB
    template = ChatTemplate("{% for m in messages %}{{ m.content.strip() ~ '!' }}{% endfor %}")
    rendered = template.render_spans([{"role": "user", "content": long}])
    assert rendered == [(long.strip(), False), ("!", True)]


def test_the_limit_is_for_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(n) %}{% set a = 'x' * 99999 %}{% endfor %}ok")
    template.time_limit = 2
    for _ in range(3):
        assert template.render(HI, n=10) == "ok"
    with pytest.raises(TemplateError):
        template.render(HI, n=99999)
    assert template.render(HI, n=10) == "ok"
