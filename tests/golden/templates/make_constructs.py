#!/usr/bin/env python3
"""Renders the templates of constructs.json as transformers does, for one message "hi there", and records the texts.

Needs transformers and jinja2 (recorded with 5.x and 3.1.6). A new template is added with any text, then recorded."""
import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

FILE = pathlib.Path(__file__).parent / "constructs.json"
MESSAGES = [{"role": "user", "content": "hi there"}]

pairs = json.loads(FILE.read_text())
for pair in pairs:
    template = _compile_jinja_template(pair[0])
    pair[1] = template.render(messages=MESSAGES, tools=None, documents=None, add_generation_prompt=True)
FILE.write_text("[\n" + ",\n".join(json.dumps(pair, ensure_ascii=False) for pair in pairs) + "\n]\n")
