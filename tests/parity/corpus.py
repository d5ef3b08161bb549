"""What Python `transformers` makes of conversations and texts: the reference for `tests/parity.rs`.

    python corpus.py TOKENIZERS OUT [SEED]

For each chat model in TOKENIZERS it writes OUT/MODEL.jsonl, a line a conversation: {"chat": request fields, "text":
rendered, "ids": encoded}, or {"chat": …, "refused": why} where transformers refuses it. For gpt2, {"text", "ids"}.
All text is made here, from a seed. Messages are given to `apply_chat_template` in the form in which vLLM does it
(`vllm/entrypoints/chat_utils.py`, 0.32): parts joined by a newline, arguments as objects, no nulls.
"""
import copy
import json
import pathlib
import random
import sys
import unicodedata

from transformers import PreTrainedTokenizerFast

CHATS = 640
TEXTS = 600

LATIN = "river stone quick lamp orange window paper seven because running tomorrow engine letter green circle value under".split()
CODE = [
    "def f(x, *, y=None):\n    return {k: v for k, v in x.items() if k != y}\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\r\n",
    "let s: &str = \"a\\n{}\";\nprintln!(\"{s:?} {:>8.3}\", 3.14159);\n",
    "SELECT id, count(*) FROM t WHERE name LIKE '%x_%' GROUP BY 1;\n",
    "<div class=\"a\"><!-- note --><p>&nbsp;{{ value }}{% if x %}</p></div>\n",
    "#!/bin/sh\nset -eu; x=$(ls -1 | wc -l) && echo \"$x\" >&2\n",
    "{\"a\": [1, 2.50, -3e-7], \"b\": {\"c\": null}}\n",
    "// TODO: don't we've I'LL it's\n\n\n    return;\n",
]
RANGES = {
    "cjk": [(0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF), (0xAC00, 0xD7A3)],
    "rtl": [(0x5D0, 0x5EA), (0x620, 0x64A), (0x660, 0x669)],
    "other": [(0x400, 0x44F), (0x370, 0x3FF), (0x900, 0x950), (0xE01, 0xE3A), (0x1E00, 0x1EFF), (0x10A0, 0x10FF)],
    "rare": [(0x20000, 0x2A6D0), (0x1D400, 0x1D4FF), (0x10330, 0x1034A), (0x2000, 0x206F), (0xFF00, 0xFFEF), (0xE000, 0xE010)],
    "marks": [(0x300, 0x36F), (0x591, 0x5BD), (0x64B, 0x65F), (0x1AB0, 0x1ABE), (0x20D0, 0x20F0)],
}
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇳🇴", "❤️", "1️⃣", "🧑‍💻", "☕", "🤷🏿‍♀️"]
SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<|vision_start|>", "<|image_pad|>", "<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>", "<|im_start|", "<|im_<|im_end|>", "<｜place▁holder▁no▁7｜>",
    "<|fim_prefix|>", "CONTINUE_FINAL_MESSAGE_TAG", "{{ messages }}", "{% raise %}",
]


def characters(rng, name, most):
    out = []
    for _ in range(rng.randint(1, most)):
        low, high = rng.choice(RANGES[name])
        out.append(chr(rng.randint(low, high)))
    return "".join(out)


def accents(rng):
    word = "".join(rng.choice("aeiounscAEO") + chr(rng.randint(0x300, 0x36F)) * rng.randint(0, 3) for _ in range(rng.randint(1, 9)))
    return unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), word + rng.choice(["ﬁ", "Å", "①", "각", "ẛ̣", ""]))


def piece(rng):
    kind = rng.randrange(17)
    if kind < 4:
        return " ".join(rng.choice(LATIN) for _ in range(rng.randint(1, 20))) + rng.choice([".", "!", "?\n", ", ", "\n\n", ""])
    if kind == 4:
        return rng.choice(CODE)
    if kind == 5:
        return characters(rng, "cjk", 30) + rng.choice(["。", "、", "！", ""])
    if kind == 6:
        return characters(rng, "rtl", 20) + rng.choice(["\u200f", "\u202e", " ", "، "])
    if kind == 7:
        return characters(rng, rng.choice(["other", "rare"]), 12)
    if kind == 8:
        return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 4)))
    if kind == 9:
        return accents(rng)
    if kind == 10:
        return characters(rng, "marks", 5)
    if kind == 11:
        return "".join(chr(rng.choice([*range(0, 32), 0x7F, 0x80, 0x85, 0xA0, 0xAD, 0x200B, 0x2028, 0xFEFF, 0xFFFD, 0xFFFE])) for _ in range(rng.randint(1, 5)))
    if kind == 12:
        return rng.choice(SPECIALS)
    if kind == 13:
        return str(rng.choice([rng.randint(0, 10**rng.randint(1, 18)), rng.random() * 1000, "1,234,567.89", "٣٤٥", "Ⅷ²½"]))
    if kind == 14:
        return rng.choice([" ", "  ", "\n", "\n\n\n", "\t", " \n ", "\r\n", "\u3000", "    "]) * rng.randint(1, 6)
    if kind == 15:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 12)))
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") for _ in range(rng.randint(1, 40)))


def text(rng, most=8):
    joint = rng.choice(["", " ", "\n"])
    return joint.join(piece(rng) for _ in range(rng.randint(0, most)))


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return rng.choice([True, False, None])
    if kind == 1:
        return rng.choice([0, -1, rng.randint(-(10**6), 10**6), 2**63 - 1, 2**64 - 1, -(2**63)])
    if kind == 2:
        return rng.choice([0.5, 1.0, -0.0, 1e16, 1e-5, 1.5e300, 123456.789, rng.random(), 3.0e-10, 1e22, 100000000000000000.0])
    if kind < 6:
        return text(rng, 3)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {text(rng, 1) or "k": value(rng, depth + 1) for _ in range(rng.randint(0, 4))}


def schema(rng, depth=0):
    kind = rng.choice(["string", "number", "array", "object"] if depth < 3 else ["string", "integer"])
    out = {"type": kind}
    if rng.random() < 0.5:
        out["description"] = text(rng, 3)
    if kind == "string" and rng.random() < 0.4:
        out["enum"] = [text(rng, 1) for _ in range(rng.randint(0, 3))]
    if kind == "number":
        out.update(minimum=rng.choice([0, -1.5, 1e-7]), default=rng.choice([None, 2.0, 7]))
    if kind == "array":
        out["items"] = schema(rng, depth + 1)
    if kind == "object":
        names = [rng.choice(LATIN) + str(i) for i in range(rng.randint(0, 4))]
        out["properties"] = {name: schema(rng, depth + 1) for name in names}
        out["required"] = names[: rng.randint(0, len(names))]
        if rng.random() < 0.3:
            out["additionalProperties"] = False
    return out


def tool(rng):
    parameters = schema(rng)
    parameters["type"] = "object"
    function = {"name": rng.choice(LATIN), "description": text(rng, 4), "parameters": parameters}
    if rng.random() < 0.2:
        function["strict"] = rng.random() < 0.5
    if rng.random() < 0.2:
        del function[rng.choice(["description", "parameters"])]
    if rng.random() < 0.2:
        function = dict(sorted(function.items(), reverse=True))
    return {"type": "function", "function": function}


def content(rng, huge=False):
    if huge:
        return "".join(text(rng, 12) for _ in range(700))
    if rng.random() < 0.2:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randint(0, 4))]
    return text(rng)


def chat(rng, number):
    messages = []
    if rng.random() < 0.6:
        messages.append({"role": rng.choice(["system", "system", "developer"]), "content": content(rng)})
    tools = [tool(rng) for _ in range(rng.randint(1, 4))] if rng.random() < 0.4 else None
    for turn in range(rng.choice([1, 1, 2, 3, 4, 6, 12, 20])):
        user = {"role": "user", "content": content(rng, huge=number % 40 == 7 and turn == 0)}
        if rng.random() < 0.1:
            user["name"] = rng.choice(LATIN)
        messages.append(user)
        if rng.random() < 0.1:
            messages.append({"role": rng.choice(["system", "user"]), "content": content(rng)})
        for _ in range(rng.choice([0, 0, 1, 2]) if tools else 0):
            calls = []
            for _ in range(rng.randint(0, 3)):
                arguments = {rng.choice(LATIN): value(rng) for _ in range(rng.randint(0, 3))}
                shown = json.dumps(arguments, ensure_ascii=rng.random() < 0.5, separators=rng.choice([None, (",", ":")]))
                calls.append({"id": f"call_{len(calls)}", "type": "function", "function": {"name": rng.choice(LATIN), "arguments": rng.choice([shown, shown, arguments])}})
            messages.append({"role": "assistant", "content": rng.choice([None, "", content(rng)]), "tool_calls": calls})
            for call in calls:
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content(rng)})
        answer = {"role": "assistant", "content": content(rng)}
        if rng.random() < 0.3:
            answer["content"] = f"<think>\n{text(rng)}\n</think>\n\n{text(rng)}"
        if rng.random() < 0.2:
            answer["reasoning_content"] = rng.choice([text(rng), "", None])
        messages.append(answer)
    options = {"add_generation_prompt": True, "continue_final_message": False}
    end = rng.random()
    if end < 0.15:
        options = {"add_generation_prompt": False, "continue_final_message": True}
    elif end < 0.85:
        messages.pop()
    if rng.random() < 0.1:
        options["add_generation_prompt"] = False
    kwargs = {}
    if rng.random() < 0.4:
        kwargs["enable_thinking"] = rng.random() < 0.5
    return {"messages": messages, "tools": tools, "chat_template_kwargs": kwargs, **options}


def prepared(messages):
    """Messages as vLLM hands them on to a template that reads content as a string."""
    out = []
    for message in copy.deepcopy(messages):
        body = message.get("content")
        if body is None:
            message["content"] = ""
        elif isinstance(body, list):
            message["content"] = "\n".join(part["text"] for part in body)
        if message["role"] == "assistant" and "tool_calls" in message:
            if not message["tool_calls"]:
                del message["tool_calls"]
            for call in message.get("tool_calls", []):
                arguments = call["function"].get("arguments")
                if isinstance(arguments, str):
                    call["function"]["arguments"] = json.loads(arguments) if arguments else {}
        out.append({key: item for key, item in message.items() if item is not None})
    return out


def defined(tools):
    """Tools as vLLM hands them on: its request's fields in their order, then what else there was."""
    out = []
    for tool in tools or []:
        function = {"name": None, "description": None, "parameters": None, **tool["function"]}
        out.append({"type": tool["type"], "function": function})
    return out or None


def line(tokenizer, request):
    try:
        shown = tokenizer.apply_chat_template(
            prepared(request["messages"]),
            tools=defined(request["tools"]),
            tokenize=False,
            add_generation_prompt=request["add_generation_prompt"],
            continue_final_message=request["continue_final_message"],
            **request["chat_template_kwargs"],
        )
    except Exception as error:
        return {"chat": request, "refused": f"{type(error).__name__}: {error}"[:200]}
    return {"chat": request, "text": shown, "ids": tokenizer(shown, add_special_tokens=False)["input_ids"]}


def load(folder):
    config = folder / "tokenizer_config.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    if config.exists():
        config = json.loads(config.read_text())
        tokenizer.chat_template = config["chat_template"]
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"]:
            token = config.get(name)
            token = token["content"] if isinstance(token, dict) else token
            if token is not None:
                setattr(tokenizer, name, token)
    return tokenizer


def main():
    tokenizers, out = map(pathlib.Path, sys.argv[1:3])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    out.mkdir(parents=True, exist_ok=True)
    for model in ["qwen3", "deepseek_v3", "gpt2"]:
        tokenizer = load(tokenizers / model)
        rng = random.Random(f"{seed} {model}")
        refused = 0
        with open(out / f"{model}.jsonl", "w", encoding="utf-8") as file:
            for number in range(TEXTS if model == "gpt2" else CHATS):
                if model == "gpt2":
                    shown = text(rng, 1500 if number % 60 == 7 else 20)
                    entry = {"text": shown, "ids": tokenizer(shown, add_special_tokens=False)["input_ids"]}
                else:
                    entry = line(tokenizer, chat(rng, number))
                refused += "refused" in entry
                file.write(json.dumps(entry, ensure_ascii=True) + "\n")
        print(f"corpus: {model}: {number + 1} made, {refused} refused by transformers")


main()
