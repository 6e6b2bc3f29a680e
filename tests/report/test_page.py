"""The page of a plan, opened in headless Chromium: what it shows, to the mouse, the finger and the keyboard."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import Adam
from smidgen.errors import BadOption, CannotWrite
from smidgen.program.plan import Plan
from smidgen.program.timeline import Span, Timeline, tensor_text
from smidgen.report import plan_html
from smidgen.train.job import Job
from tests.support import named
from tests.support.browser import DESKTOP, PHONE, Browser

pytestmark = pytest.mark.xdist_group("page")  # one browser, and each network compiled once
EVIL = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><!--\u2028{{js}}"


@functools.cache
def plan(name: str) -> Plan:
    if name == "named":
        return Job(encode(named.entries(optimizer=Adam(0.01), accumulate=True))).plan
    if name == "in a loop":
        return Job(encode(named.entries(("head.weight", "head.bias"), batch=6))).plan
    from benchmarks.nets import NETS

    net = NETS[name]
    x, _ = net.data(8)
    return Job(encode(api.build(net.model(), x, loss=net.loss, batch=8))).plan


@functools.cache
def html(name: str) -> str:
    return plan_html.html_page(plan(name), title=name, seconds_per_step=0.25)


NAMES = ["named", "in a loop", "mcunet", "resnet18"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("name", NAMES)
def test_the_page_opens_without_errors_and_without_scrolling_sideways(
    browser: Browser, name: str, size: tuple[int, int], scheme: str
) -> None:
    browser.open(html(name), size, scheme, touch=size == PHONE)
    assert browser.text("#ram-bytes") == f"{plan(name).ram_bytes:,}"
    assert browser.run("return document.documentElement.scrollWidth") == size[0]
    wide = "return [...document.querySelectorAll('section, table.layers, h1, #facts')].filter((e) => {"
    assert browser.run(f"{wide} const b = e.getBoundingClientRect(); return b.right > innerWidth + 1 }}).length") == 0
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    if "SMIDGEN_SCREENSHOTS" in os.environ:  # to look at them
        folder = Path(os.environ["SMIDGEN_SCREENSHOTS"])
        browser.screenshot(folder / f"{name.replace(' ', '-')}-{size[0]}-{scheme}.png")
    assert browser.errors() == []


def test_light_and_dark_differ(browser: Browser) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        browser.open(html("named"), scheme=scheme)
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        seen[scheme] = [int(x) for x in re.findall(r"\d+", colour)[:3]]
    assert min(seen["light"]) > 230
    assert max(seen["dark"]) < 40


def middle(span: Span, timeline: Timeline, arena: int, box: list[float]) -> tuple[float, float]:
    """The pixel in the middle of a rectangle, from the plan and where the picture is."""
    left, top, width, height = box
    x = (span.first + span.last + 1) / 2 / len(timeline.moments)
    return left + x * width, top + (1 - (span.offset + span.bytes / 2) / arena) * height


def chosen(timeline: Timeline, arena: int, box: list[float]) -> list[Span]:
    """Rectangles of every kind, sizes from large to small, at least three pixels high and wide."""
    seen = [
        s for s in timeline.spans
        if s.bytes / arena * box[3] >= 3 and (s.last + 1 - s.first) / len(timeline.moments) * box[2] >= 3
    ]  # fmt: skip
    seen.sort(key=lambda s: -s.bytes)
    found = {s.kind: s for s in reversed(seen)} | {f"{s.kind} large": s for s in reversed(seen)}
    return [*found.values(), *seen[:: max(1, len(seen) // 12)]]


@pytest.mark.parametrize("name", NAMES)
def test_pointing_at_a_rectangle_shows_its_tensor(browser: Browser, name: str) -> None:
    browser.open(html(name))
    entry = max(plan(name).arena_by_entry, key=lambda e: (plan(name).arena_by_entry[e], e == "train"))
    timeline, arena = plan(name).facts.entries[entry], plan(name).arena_by_entry[entry]
    box = browser.box("#arena")
    spans = chosen(timeline, arena, box)
    assert len(spans) >= 6
    for span in spans:
        browser.point(*middle(span, timeline, arena, box))
        text = browser.text("#tip").splitlines()
        maker = timeline.maker(span)
        assert text[0] == tensor_text(span.tensor)
        assert f"{span.bytes:,} bytes" in "\n".join(text)
        assert f"layer {maker.layer}, made by {maker.op}" in text
        life = "\n".join(text)
        assert f"instruction {span.first + 1}, {timeline.moments[span.first].op}" in life
        assert f"instruction {span.last + 1}, {timeline.moments[span.last].op}" in life
        assert f"address {span.offset:,} to {span.offset + span.bytes:,}" in text
    tip = browser.box("#tip")
    assert 0 <= tip[0] <= DESKTOP[0] - tip[2]
    browser.point(1, 1)
    assert browser.run("return document.getElementById('tip').hidden")
    assert browser.errors() == []


def test_pointing_at_the_curve_shows_the_bytes_in_use(browser: Browser) -> None:
    browser.open(html("mcunet"))
    timeline = plan("mcunet").facts.entries["train"]
    left, top, width, height = browser.box("#live")
    live = timeline.live()
    for moment in (0, 17, timeline.peak()[0], len(live) - 1):
        browser.point(left + (moment + 0.5) / len(live) * width, top + height / 2)
        assert f"{live[moment]:,} bytes in use" in browser.text("#tip")
        assert browser.text("#tip").startswith(f"{timeline.moments[moment].op} of {timeline.moments[moment].layer}")


def test_a_tap_shows_the_tensor_and_a_tap_elsewhere_hides_it(browser: Browser) -> None:
    browser.open(html("resnet18"), PHONE, touch=True)
    timeline, arena = plan("resnet18").facts.entries["train"], plan("resnet18").arena_bytes
    box = browser.box("#arena")
    span = max(timeline.spans, key=lambda s: s.bytes * (s.last - s.first))
    x, y = middle(span, timeline, arena, box)
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        browser.cdp("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    assert browser.text("#tip").splitlines()[0] == tensor_text(span.tensor)
    tip = browser.run("const b = document.getElementById('tip').getBoundingClientRect(); return [b.left, b.right]")
    assert tip[0] >= 0
    assert tip[1] <= PHONE[0]
    for kind, points in (("touchStart", [{"x": 5, "y": 5}]), ("touchEnd", [])):
        browser.cdp("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    assert browser.run("return document.getElementById('tip').hidden")
    assert browser.errors() == []


def press(browser: Browser, *keys: str) -> str:
    for key in keys:
        for kind in ("keyDown", "keyUp"):
            browser.cdp("Input.dispatchKeyEvent", type=kind, key=key, code=key)
    return browser.text("#tip").splitlines()[0]


def test_the_keyboard_goes_from_tensor_to_tensor(browser: Browser) -> None:
    browser.open(html("mcunet"))
    browser.run("document.getElementById('arena').focus()")
    timeline = plan("mcunet").facts.entries["train"]
    order, at_peak = list(timeline.spans), timeline.alive(timeline.peak()[0])
    assert press(browser, "Home") == tensor_text(at_peak[0].tensor)
    index = order.index(at_peak[0])
    assert press(browser, "ArrowRight") == tensor_text(order[index + 1].tensor)
    assert press(browser, "ArrowLeft", "ArrowLeft") == tensor_text(order[index - 1].tensor)
    above = sorted(
        (s for s in timeline.alive(order[index].first) if s.offset > order[index].offset), key=lambda s: s.offset
    )
    assert press(browser, "ArrowRight", "ArrowUp") == tensor_text(above[0].tensor)
    press(browser, "Escape")
    assert browser.run("return document.getElementById('tip').hidden")
    assert browser.errors() == []


def test_entry_points_can_be_switched_and_all_tensors_listed(browser: Browser) -> None:
    browser.open(html("named"))
    labels = browser.run("return [...document.querySelectorAll('#tabs button')].map((b) => b.value)")
    assert labels == ["train", "grad", "apply", "zero", "infer"]
    browser.run("document.querySelector('#all summary').click()")
    for name in labels:
        browser.run(f"document.querySelector('#tabs button[value={name}]').click()")
        timeline = plan("named").facts.entries[name]
        assert browser.text("#tabs [aria-pressed=true]").startswith(f"{name} ")
        assert f"{plan('named').arena_by_entry[name]:,} bytes" in browser.text("#about")
        rows = "return [...document.querySelectorAll('#tensors tr')].map((r) => r.cells[0].textContent)"
        assert browser.run(rows) == [tensor_text(s.tensor) for s in timeline.spans]
        peak = browser.run("return [...document.querySelectorAll('#peak li')].map((e) => e.lastChild.textContent)")
        alive = [tensor_text(s.tensor) for s in timeline.alive(timeline.peak()[0])]
        assert peak[: min(12, len(alive))] == alive[:12]
    assert browser.errors() == []


def test_zoom_makes_small_things_wide_enough_to_point_at(browser: Browser) -> None:
    browser.open(html("resnet18"), PHONE, touch=True)
    before = browser.box("#arena")
    for _ in range(2):
        browser.run("document.getElementById('in').click()")
    after = browser.box("#arena")
    assert after[2] == pytest.approx(4 * before[2], rel=0.01)
    assert browser.run("return document.documentElement.scrollWidth") == PHONE[0]
    timeline, arena = plan("resnet18").facts.entries["train"], plan("resnet18").arena_bytes
    small = [s for s in timeline.spans if s.bytes / arena * after[3] >= 3 and s.last - s.first < 12]
    places = [(s, *middle(s, timeline, arena, after)) for s in small]
    seen = [(s, x, y) for s, x, y in places if 100 < x < 340 and 0 < y < PHONE[1]]  # right of the scale
    for span, x, y in seen[:5]:
        browser.point(x, y)
        assert browser.text("#tip").splitlines()[:1] == [tensor_text(span.tensor)]
    assert seen
    for _ in range(9):
        browser.run("document.getElementById('in').click()")
    assert browser.run("return document.getElementById('arena').width") <= 16384
    assert browser.errors() == []


def test_layers_and_decisions_are_those_of_the_plan(browser: Browser) -> None:
    browser.open(html("resnet18"))
    rows = "return [...document.querySelectorAll('#layers tr')].map((r) => r.cells[0].firstChild.textContent)"
    data = plan_html.page_data(plan("resnet18"))
    assert browser.run(rows) == [row["name"] for row in data["rows"]]
    browser.run("document.getElementById('fold').click()")
    assert browser.run(rows) == [row["name"] for row in data["layers"]]
    assert len(data["layers"]) > 40 >= len(data["rows"])
    for decision in plan("resnet18").decisions:
        assert f"{decision.kind}: {decision.why}" in browser.text("#decisions")
    bar = "const b = document.querySelector('#layers tr:nth-child(2) .stack').getBoundingClientRect(); return b.width"
    assert browser.run(bar) > 20


def test_names_from_a_model_stay_text(browser: Browser) -> None:
    made = Job(encode(named.entries(module=EVIL))).plan
    written = plan_html.html_page(made, title=EVIL)
    assert written.count("<script") == 2
    browser.open(written)
    assert browser.run("return document.title").startswith("</script><script>")
    assert browser.run("return document.querySelector('h1').textContent") == EVIL
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert EVIL in browser.run("return document.getElementById('layers').textContent")
    timeline, box = made.facts.entries["train"], browser.box("#arena")
    span = next(s for s in timeline.spans if s.tensor == f"{EVIL}.1.relu")
    browser.point(*middle(span, timeline, made.arena_bytes, box))
    assert browser.run("return document.querySelector('#tip h4').textContent") == tensor_text(span.tensor)
    assert browser.errors() == []


def test_a_script_that_gets_in_anyway_is_not_run(browser: Browser) -> None:
    """The policy is the second wall: here a hole is made in the first."""
    browser.open(html("named").replace("<body>", "<body><script>document.title = 'taken'</script>"))
    assert browser.run("return document.title") == "named · smidgen plan"
    assert any("Content Security Policy" in message for message in browser.errors())


def test_a_plan_without_facts_has_a_page_too(browser: Browser) -> None:
    facts = {k: v for k, v in plan("named").to_json().items() if k != "facts"}
    browser.open(plan_html.html_page(Plan.from_json(facts)))
    assert browser.text("#ram-bytes") == f"{plan('named').ram_bytes:,}"
    assert not browser.run("return document.getElementById('arena').checkVisibility()")
    assert browser.errors() == []


def test_the_page_says_what_a_step_and_an_inference_take_on_the_device(browser: Browser) -> None:
    priced = replace(plan("named"), device="nano33ble", step_seconds=0.62, infer_seconds=0.21, infer_joules=0.002)
    browser.open(plan_html.html_page(priced, seconds_per_step=0.25, seconds_per_inference=0.125))
    facts = browser.text("#facts")
    assert "620 ms" in facts
    assert "210 ms inference of 1 sample on nano33ble, predicted: 2 mJ" in facts
    assert "inference of 1 sample 125 ms" in facts
    assert browser.errors() == []


# -- without a browser --------------------------------------------------------------------------------------------


def test_the_page_of_resnet_is_small_and_needs_nothing_else() -> None:
    text = html("resnet18")
    assert len(text.encode()) < 300_000  # the promise is two megabytes
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|url\(", text)
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]
    assert len(str(plan("resnet18").to_json())) < 100_000


def test_without_scripts_the_text_is_there() -> None:
    text = html("in a loop")
    [fallback] = re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    assert f"{plan('in a loop').ram_bytes:,} bytes" in fallback
    assert "sample by sample" in fallback


def test_the_page_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    target.write_text("old")
    plan_html.write(plan("named"), target, title="named", seconds_per_step=0.25)
    assert target.read_text(encoding="utf-8") == html("named")
    assert [p.name for p in tmp_path.iterdir()] == ["plan.html"]
    with pytest.raises(CannotWrite, match="cannot write"):
        plan_html.write(plan("named"), tmp_path / "missing" / "plan.html")
    with pytest.raises(BadOption, match="is not a path"):
        plan_html.write(plan("named"), 7)  # type: ignore[arg-type]
    plan_html.write(plan("named"), target, title="lone \ud800 surrogate")
    assert "lone ? surrogate" in target.read_text(encoding="utf-8")
