#!/usr/bin/env python3
"""usage: tools/picture.py SCREEN WIDTH OUT.svg   (needs `pip install rich`)

Draws a screen of WIDTH columns, saved by `tmux capture-pane -N -e -p`, as an SVG.
"""

import re
import sys

from rich.console import Console
from rich.text import Text

screen, width, out = sys.argv[1:]
text = re.sub(r"\x1b\]8;[^\x1b]*\x1b\\", "", open(screen, encoding="utf8").read().rstrip("\n"))
console = Console(
    record=True, width=int(width), file=open("/dev/null", "w"), force_terminal=True, color_system="truecolor", legacy_windows=False
)
for line in text.split("\n"):
    console.print(Text.from_ansi(line), no_wrap=True, overflow="ignore", crop=False)
svg = console.export_svg(title="dmschat")
svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S).replace("Fira Code", "DejaVu Sans Mono")
open(out, "w", encoding="utf8").write(svg)
print(f"wrote {out}")
