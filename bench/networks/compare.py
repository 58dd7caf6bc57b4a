"""The networks of distribute-models beside the same ones in PyTorch: curves.json and the pictures.

    cargo build -p distribute-models --features bench --example curves
    python bench/networks/compare.py run --program target/debug/examples/curves \\
        --torch PYTHON_WITH_TORCH > bench/networks/curves.json
    python bench/networks/compare.py pictures
    python bench/networks/compare.py history FILE TITLE > PICTURE

`run` trains each network in both for 100 steps and fails if a loss differs by more than 1e-3.
`pictures` draws the curves into `docs`. `history` draws what the program `resnet` writes with `--history`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
STEPS = 100
LIMIT = 1e-3
TITLES = {
    "resnet-narrow": "Narrow ResNet, digits of 28 x 28",
    "resnet-18": "ResNet-18, digits of 40 x 40",
    "gpt": "GPT of 3.2 million parameters, Alice in Wonderland",
    "two-towers": "Two towers, visits by a rule",
}


def run(options):
    curves, failed = {}, False
    for network in TITLES:
        programs = {
            "pytorch": [options.torch, str(HERE / "pytorch_loop.py")],
            "distribute": [options.program],
        }
        curve = {}
        for name, command in programs.items():
            command = [*command, network, str(STEPS)]
            losses = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            curve[name] = [float(f"{loss:.7g}") for loss in json.loads(losses)]
        pairs = zip(curve["pytorch"], curve["distribute"])
        difference = max(abs(one - other) for one, other in pairs)
        print(f"{network}: largest difference {difference:.1e}", file=sys.stderr)
        failed |= difference > LIMIT
        curves[network] = curve
    lines = [f'"{network}": {json.dumps(curve)}' for network, curve in curves.items()]
    print("{" + ",\n".join(lines) + "}")
    sys.exit(failed)


def picture(title, x_title, panels):
    """Panels beside each other: (y title, lines), a line being (name, colour, width, dashes, points)."""
    width = 400
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * len(panels)} 300"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width * len(panels)}" height="300" fill="white"/>',
        f'<text x="54" y="22" font-size="15" font-weight="bold">{title}</text>',
    ]
    for index, (y_title, lines) in enumerate(panels):
        left, right, top, bottom = width * index + 54, width * (index + 1) - 16, 40, 250
        values = [y for *_, points in lines for _, y in points]
        ends = [x for *_, points in lines for x, _ in points]
        low, high, first, last = min(values), max(values), min(ends), max(ends)
        x_at = lambda x: left + (x - first) / (last - first) * (right - left)
        y_at = lambda y: bottom - (y - low) / (high - low) * (bottom - top)
        for tick in range(5):
            y = low + (high - low) * tick / 4
            parts.append(
                f'<line x1="{left}" x2="{right}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" stroke="#ddd"/>'
                f'<text x="{left - 6}" y="{y_at(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>'
            )
        for x in (first, last):
            parts.append(f'<text x="{x_at(x):.1f}" y="268" text-anchor="middle">{x}</text>')
        parts.append(
            f'<text x="{(left + right) / 2}" y="288" text-anchor="middle">{x_title}</text>'
            f'<text transform="translate({left - 40},{(top + bottom) / 2}) rotate(-90)"'
            f' text-anchor="middle">{y_title}</text>'
        )
        for at, (name, colour, stroke, dashes, points) in enumerate(lines):
            path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
            style = f'stroke="{colour}" stroke-width="{stroke}" stroke-dasharray="{dashes}"'
            y = (top + 14 if y_title != "accuracy" else bottom - 34) + 18 * at
            parts.append(
                f'<polyline fill="none" {style} points="{path}"/>'
                f'<line x1="{right - 120}" x2="{right - 96}" y1="{y}" y2="{y}" {style}/>'
                f'<text x="{right - 90}" y="{y + 4}">{name}</text>'
            )
    return "\n".join(parts) + "\n</svg>\n"


def pictures(_):
    for network, curve in json.loads((HERE / "curves.json").read_text()).items():
        lines = [
            ("PyTorch", "#999999", 5, "", list(enumerate(curve["pytorch"], 1))),
            ("distribute", "#d55e00", 2, "", list(enumerate(curve["distribute"], 1))),
        ]
        drawn = picture(TITLES[network], "step", [("loss", lines)])
        (DOCS / f"curves-{network}.svg").write_text(drawn)


def history(options):
    rows = [json.loads(line) for line in Path(options.file).read_text().splitlines()]
    panels = []
    for name in ("loss", "accuracy"):
        train, test = ([(row["epoch"], row[key]) for row in rows] for key in (name, f"val_{name}"))
        panels.append((name, [("train", "#0072b2", 2, "6 4", train), ("test", "#d55e00", 2, "", test)]))
    print(picture(options.title, "epoch", panels), end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("--program", required=True)
    command.add_argument("--torch", required=True)
    command.set_defaults(call=run)
    commands.add_parser("pictures").set_defaults(call=pictures)
    command = commands.add_parser("history")
    command.add_argument("file")
    command.add_argument("title")
    command.set_defaults(call=history)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
