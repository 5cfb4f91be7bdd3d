"""The picture of the docs: what is drawn can be read."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from deploy.grafana.chart import Chart
from deploy.grafana.meanings import AMBER, BLUE, GREEN, GREY, RED
from deploy.grafana.overview import OVERVIEW
from deploy.grafana.picture import Points, Window, picture
from tests.deploy.rules import TOP

SVG = "{http://www.w3.org/2000/svg}"
FLAT: Points = [(0.0, 1.0), (10.0, 1.0)]
WINDOW = Window(2.0, 4.0, "the fault")


def chart(title: str) -> Chart:
    return next(each for each in OVERVIEW.charts if each.title == title and each.kind == "lines")


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_outcomes_have_their_colours() -> None:
    series = dict.fromkeys(("succeeded", "failed", "declined"), FLAT)
    drawn = picture([(chart("What became of operations"), series)], WINDOW)
    assert re.findall(r'polygon points="[^"]+" fill="(#\w+)"', drawn) == [BLUE, GREY, GREEN]  # the top one first


def test_what_is_in_doubt_is_amber() -> None:
    drawn = picture([(chart("In doubt, by operation"), {"acme sale": FLAT})], WINDOW)
    assert f'stroke="{AMBER}" stroke-width' in drawn


def test_no_name_is_cut_and_none_lies_over_another() -> None:
    names = [f"a_provider_with_a_long_name_{number} an_operation_with_a_long_name" for number in range(9)]
    drawn = picture([(chart("In doubt, by operation"), dict.fromkeys(names, FLAT))], WINDOW)
    assert set(names) <= set(texts(drawn))
    root = ElementTree.fromstring(drawn)
    at = [
        (float(each.get("x", "")), float(each.get("y", ""))) for each in root.iter(f"{SVG}text") if each.text in names
    ]
    assert len(set(at)) == len(names)
    assert max(y for _, y in at) < float(root.get("height", ""))


def test_the_time_of_the_fault_is_shaded_on_every_panel() -> None:
    panels = [(chart("In doubt, by operation"), {"acme sale": FLAT}), (chart("Amplification"), {"acme": FLAT})]
    drawn = picture(panels, WINDOW)
    assert len(re.findall(f'fill="{RED}" opacity', drawn)) == len(panels)
    assert texts(drawn).count("the fault") == len(panels)


def test_the_picture_of_the_docs_has_three_panels_with_the_fault() -> None:
    shown = texts((TOP / "docs" / "pictures" / "bad-day.svg").read_text("utf-8"))
    assert shown.count("the provider loses answers") == 3
    assert {"What became of operations", "In doubt, by operation", "Amplification", "succeeded"} <= set(shown)
