"""The picture of memory over a step, as SVG or PNG; matplotlib is the optional extra `plot`."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segplan.errors import RequestError
from segplan.report import format as fmt
from segplan.report.workload import title
from segplan.units import GIB, MIB

if TYPE_CHECKING:
    from segplan.api.estimating import Study
    from segplan.api.timeline import Timeline

FORMATS = (".svg", ".png")

COLOURS = {
    "parameters": "#33415c",
    "optimizer_state": "#6b7a99",
    "gradients": "#2a9d8f",
    "activations": "#e9a23b",
    "temporaries": "#d1603d",
    "workspaces": "#b8b8c4",
}
_LIMIT, _INK, _QUIET = "#b3123b", "#22262e", "#6b7280"

_NEAR = 2.0
"""The card's line is drawn where it is at most this many times the peak."""

_CLOSE = 0.07
"""Lines closer than this share of the height need their labels on opposite sides."""

_NARROW = 0.06
"""A phase below this share of the width gets no label inside."""


def check_plot(path: str) -> Path:
    """The file a picture goes to, checked before hours of work (or seconds).

    Raises:
        RequestError: the ending is not one of `FORMATS`, the folder is not there, or matplotlib
            is not installed.
    """
    file = Path(path)
    if file.suffix.lower() not in FORMATS:
        raise RequestError(f"--plot {path}: the name must end in .svg or .png.")
    if not file.parent.is_dir():
        raise RequestError(f"--plot {path}: there is no folder {file.parent}.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise RequestError("--plot needs matplotlib: pip install segplan[plot].") from error
    return file


def write_plot(study: Study, path: str) -> Path:
    """Draw the step of a study.

    Args:
        study: with a timeline.
        path: a file ending in .svg or .png.

    Raises:
        RequestError: as `check_plot`, or the file cannot be written.
    """
    file = check_plot(path)
    if study.timeline is None:
        raise RequestError("there is no timeline to draw.")
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {
        "font.family": "DejaVu Sans", "font.size": 9.0, "svg.fonttype": "path",
        "svg.hashsalt": "segplan", "text.color": _INK, "axes.labelcolor": _QUIET,
        "xtick.color": _QUIET, "ytick.color": _QUIET,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(9.0, 4.8), dpi=160, facecolor="white")
        _draw(figure, study, study.timeline)
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        try:
            figure.savefig(file, metadata=metadata)
        except OSError as error:
            raise RequestError(f"--plot {path}: {error.strerror or error}.") from error
    return file


def _draw(figure: Any, study: Study, line: Timeline) -> None:
    axes = figure.add_axes((0.075, 0.115, 0.735, 0.70))
    unit, unit_name = (GIB, "GiB") if line.peak >= GIB else (MIB, "MiB")
    held = {name: sizes for name, sizes in line.layers.items() if any(sizes)}
    count = len(line.operators)
    kept = _visible(line)
    edges = [*kept, count]
    base = [0.0] * len(edges)
    for name, sizes in held.items():
        shown = [sizes[i] for i in (*kept, count - 1)]
        top = [b + s / unit for b, s in zip(base, shown, strict=True)]
        axes.fill_between(
            edges, base, top, step="post", color=COLOURS[name], linewidth=0,
            label=name.replace("_", " "),
        )  # fmt: skip
        base = top
    axes.step(edges, base, where="post", color=_INK, linewidth=0.6)

    highest = max(line.peak, study.memory.least_memory)
    if study.budget is not None and study.budget <= line.peak * _NEAR:
        highest = max(highest, study.budget)
    axes.set_xlim(0, count)
    axes.set_ylim(0, highest / unit * 1.09)
    _phases(axes, line)
    _peak(axes, study, line, unit, highest)
    _limits(axes, study, line, unit, highest)
    axes.set_ylabel(f"live memory ({unit_name})")
    axes.set_xlabel("operators of one training step, in order")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c9ccd3")
    axes.tick_params(length=3, color="#c9ccd3")
    axes.margins(0)
    _legend(axes, line, held)
    _titles(figure, study)


def _visible(line: Timeline) -> list[int]:
    """The operators where the picture changes by more than a fraction of a pixel, and the peak."""
    least = line.peak / 2000
    kept: list[int] = []
    before: tuple[int, ...] = ()
    for i, now in enumerate(zip(*line.layers.values(), strict=True)):
        moved = not kept or any(abs(a - b) > least for a, b in zip(now, before, strict=True))
        if moved or i == line.peak_at:
            kept.append(i)
            before = now
    return kept


def _phases(axes: Any, line: Timeline) -> None:
    """Forward, backward, optimizer: named above the picture, parted by thin lines."""
    count = len(line.operators)
    for phase in line.phases:
        if phase.start:
            axes.axvline(phase.start, color=_QUIET, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
        wide = (phase.end - phase.start) / count >= _NARROW
        if not wide and phase.end != count:
            continue
        axes.annotate(
            phase.name,
            ((phase.start + phase.end) / 2 if wide else count, 1.0),
            xycoords=("data", "axes fraction"), xytext=(0, 5), textcoords="offset points",
            ha="center" if wide else "right", va="bottom", color=_QUIET, fontsize=9,
        )  # fmt: skip


def _peak(axes: Any, study: Study, line: Timeline, unit: int, highest: int) -> None:
    """The peak, by its bytes and operator; above the least memory's line where that is close."""
    left = line.peak_at > 0.6 * len(line.operators)
    at = (line.peak_at + 0.5, line.peak / unit)
    axes.plot([at[0]], [at[1]], "o", color=_INK, markersize=4, zorder=5)
    least = study.memory.least_memory
    height = least if 0 <= least - line.peak < _CLOSE * highest else line.peak
    _label(
        axes, f"peak {fmt.memory(line.peak)} · {line.operators[line.peak_at].partition('.')[0]}",
        (at[0], height / unit), (-8 if left else 8, 3), "right" if left else "left", "bottom",
        _INK, bold=True,
    )  # fmt: skip


def _limits(axes: Any, study: Study, line: Timeline, unit: int, highest: int) -> None:
    """The least memory, thin, and the card's line; left out where that lies far above."""
    least, budget = study.memory.least_memory, study.budget
    axes.axhline(least / unit, color=_INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=4)
    near = budget is not None and abs(budget - least) < _CLOSE * highest
    below = near and budget is not None and budget > least
    _label(
        axes, f"least memory that trains {fmt.memory(least)}",
        (0, least / unit), (6, -4 if below else 3), "left", "top" if below else "bottom", _INK,
    )  # fmt: skip
    if budget is None or budget > highest:  # the title says what the card leaves
        return
    axes.axhline(budget / unit, color=_LIMIT, linewidth=1.4, zorder=4)
    below = near and budget <= least
    _label(
        axes, f"{study.card} leaves {fmt.memory(budget)}",
        (line.phases[-1].start, budget / unit), (-6, -4 if below else 3), "right",
        "top" if below else "bottom", _LIMIT,
    )  # fmt: skip


def _label(
    axes: Any,
    text: str,
    at: tuple[float, float],
    offset: tuple[int, int],
    ha: str,
    va: str,
    color: str,
    *,
    bold: bool = False,
) -> None:
    """Text beside a point, legible over whatever is drawn there."""
    from matplotlib.patheffects import withStroke

    axes.annotate(
        text, at, xytext=offset, textcoords="offset points", ha=ha, va=va, color=color,
        fontsize=9, fontweight="bold" if bold else "normal", zorder=6,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )  # fmt: skip


def _legend(axes: Any, line: Timeline, held: dict[str, tuple[int, ...]]) -> None:
    """Names beside the picture in the order of the layers, with the bytes at the peak."""
    from matplotlib.patches import Patch as Swatch

    names = list(reversed(held))
    legend = axes.legend(
        handles=[Swatch(color=COLOURS[name]) for name in names],
        labels=[
            f"{name.replace('_', ' ')}\n"
            + (fmt.memory(held[name][line.peak_at]) if held[name][line.peak_at] else "none")
            for name in names
        ],
        title="at the peak", alignment="left", title_fontsize=9,
        loc="upper left", bbox_to_anchor=(1.025, 1.0), frameon=False, handlelength=1.0,
        handleheight=1.0, labelspacing=0.9, borderaxespad=0.0, borderpad=0.0, fontsize=9,
    )  # fmt: skip
    legend.get_title().set_color(_QUIET)
    for text in legend.get_texts():
        text.set_linespacing(1.25)


def _titles(figure: Any, study: Study) -> None:
    w = study.workload
    figure.text(
        0.018, 0.955, f"{w.model}, patch {fmt.patch(w.patch)}, batch {w.batch}",
        fontsize=13, fontweight="bold", va="center",
    )  # fmt: skip
    arguments, *rest = title(w).removeprefix(w.model).split(" · ")
    given = textwrap.shorten(arguments.strip(" ()"), 50, placeholder=" …")
    what = " · ".join(text for text in (given, *rest) if text)
    where = "no card: tensors and allocator only"
    if study.card is not None:
        where = f"{study.card} leaves {fmt.memory(study.budget)}"
    figure.text(
        0.018, 0.908, f"{what} · {where} · {study.memory.basis.value}",
        fontsize=8.5, color=_QUIET, va="center",
    )  # fmt: skip
