"""The page of `make faults`: a campaign writes the sections of its classes, and leaves the others as they are."""

from __future__ import annotations

from tests.faults import ENGINES, FAULTS, RAY, ROOT, Section, page


def tried(name: str, delay: float) -> Section:
    section = Section()
    section.rows["raise", "reset"].runs[name] = 2
    section.rows["SIGKILL from outside", "any"].runs[name] = 1
    section.rows["SIGKILL from outside", "any"].wrong.append("no error")
    section.delays[name].append(delay)
    return section


def test_a_campaign_with_some_classes_leaves_the_other_sections() -> None:
    first = page("", {"Workers on Ray": tried("Ray", 0.25)}, 3, list(RAY))
    assert "3 runs with seed 3 in 0 s: 1 of 2 faults left nothing" in first
    assert "| Ray | 1 | 250 ms | 250 ms |" in first
    assert "| raise | reset | 0 | 2 | 0 | 0 | 0 | 0 |" in first
    assert "| SIGKILL from outside | any | 0 | 1 | 0 | 0 | 0 | 1 |" in first
    both = page(first, {"Workers on torch.distributed and RPC": tried("RPC", 0.5)}, 4, list(ENGINES))
    assert [line for line in both.splitlines() if line.startswith("## ")] == [
        "## Workers on torch.distributed and RPC",
        "## Workers on Ray",
    ]
    assert both.endswith(first[first.index("## Workers on Ray") :])
    assert page(both, {}, 0, []) == both


def test_the_page_of_the_documentation_can_be_written_again() -> None:
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    assert page(text, {}, 0, []) == text
    assert all(text.count(f"| {how} | {phase} |") == text.count("\n## ") for how, phase in FAULTS)
