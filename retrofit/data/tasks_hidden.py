"""A number hidden in a text of any kind: named in a sentence, a setting or a line of code, or standing alone."""
import re

import data.words as W
from data.phrasing import compose_hidden, dress, join
from data.tasks_text import HIDDEN_PHRASINGS, filler, secret_subject
from data.texts import any_word, make_text
from data.turn import Turn, phrase, pick_phrasing

LABELS = """access code|code|door code|alarm code|gate code|entry code|secret code|pass code|security code|error code|area code|zip code|
postal code|PIN|pin|PIN code|key|key number|number|secret number|magic number|lucky number|winning number|phone number|house number|
ticket number|ticket|room number|room|invoice number|invoice|order number|order|serial number|account number|customer number|
flight number|flight|platform|locker|locker number|seat|table|gate|page|password|pass phrase number|combination|lock combination|
reference|reference number|case number|batch number|part number|model number|booking number|booking code|confirmation code|
confirmation number|tracking number|membership number|member id|user id|student id|badge number|extension|port|build number|
licence number|registration number|voucher|voucher code|coupon code|quote|score|total|price|amount|rent|salary|height|weight|
distance|temperature|population|year of birth|year|meter reading|deposit|budget|fee|reward|deadline number|apartment|floor|bus|
tram line|channel|frequency|lot number|policy number|contract number|patient number|file number|id|token|safe combination|vault code|
wifi password|server port|launch code|unlock code|activation code|backup code|chapter|verse|shelf|box number|container|parcel number|
hall number|stand number|group number|team number|bib number|start number|article number|item number|answer|secret|target|limit""".replace("\n", "").split("|")
OWNER_JOINTS = ["for", "for", "for", "of", "of", "to", "in", "at", "from"]
SENTENCES = [   # [what is quoted]; {l} label, {o} owner with a space in front or nothing, {n} the number
    "[The {l}{o} is {n}].", "[The {l}{o} is {n}].", "[The {l}{o} is {n}].", "[The {l}{o} was {n}].", "[The {l}{o} is {n}]!", "Remember: [the {l}{o} is {n}].", "By the way, [the {l}{o} is {n}].",
    "[The {l}{o}: {n}].", "Please note that [the {l}{o} is {n}].", "{w} said that [the {l}{o} is {n}].", "{w} whispered that [the {l}{o} was {n}], and nobody heard it.", "Remember, when you get there, that [the {l}{o} is {n}].",
    "Do not forget that [the {l}{o} is {n}], or you will have to wait.", "[{n} is the {l}{o}].", "Use [{n} as the {l}{o}].", "They changed [the {l}{o} to {n}] last week.", "[The {l}{o} has been {n}] since the spring.",
    "[The {l}{o} was set to {n}].", "[The {l}{o} will be {n}] from now on.", "Write down [the {l}{o}, {n}], and keep it.", "You will need [the {l}{o} ({n})] for that.", "I noted [the {l}{o}: {n}].", "[My {l}{o} is {n}].",
    "[Our {l}{o} is {n}].", "[Your {l}{o} is {n}].", "[His {l}{o} is {n}], as far as {w} knows.", "[The {l} you need{o} is {n}].", "On the paper stood [the {l}{o}: {n}].", "If anybody asks, [the {l}{o} is {n}].", "As agreed, [the {l}{o} is {n}] and not the old one.",
    "It says here that [the {l}{o} equals {n}].", "[The {l}{o} reads {n}].", "[The {l}{o} is still {n}].", "[The new {l}{o} is {n}].", "The guard asked for [the {l}{o}], which is {n}.", "[This {l}{o} is {n}], {w} wrote.", "After a while {w} found [the {l}{o}, {n}].",
    "Give them [the {l}{o} {n}] when you arrive.", "Ask for [{l} {n}] at the desk.", "[{L} {n}] belongs to you.", "We are in [{l} {n}] now.", "Take [{l} {n}].", "With [{l} {n}] you can get in.", "It was [{l} {n}] that {w} wanted.", "They gave me [{l} {n}].",
    "[{l} no. {n}] is yours.", "[{L} #{n}].", "To get in, type [the {l}{o}]: {n}.", "Nobody but {w} knew that [the {l}{o} was {n}].", "[The {l}{o} turned out to be {n}].", "There is only one thing to remember, namely that [the {l}{o} is {n}].",
    "Somebody had written [the {l}{o}, {n}], on the wall.", "[{L}{o}: {n}]", "[{L}{o}: {n}].", "({w}: [the {l}{o} is {n}])", "\"[The {l}{o} is {n}],\" said {w}.", "PS: [the {l}{o} is {n}].", "[The {l}{o} = {n}]."]
LINES = [    # for texts of lines; {k} the label as an identifier
    "[{L}{o}: {n}]", "- [{l}{o}: {n}]", "* [{L}{o}: {n}]", "[{l} = {n}]", "[{k} = {n}]", "[{k}: {n}]", "[{k}={n}]", "[\"{k}\": {n}],", "| [{l} | {n}] |", "[{l},{n}]", "# [{l}{o}: {n}]", "// [the {l}{o} is {n}]", "// [{L}{o}: {n}]",
    "    # [the {l}{o} is {n}]", "const [{K}: u32 = {n}];", "let [{k} = {n}];", "    let [{k}: u64 = {n}];", "[{K} = {n}]", "#define [{K} {n}]", "export [{K}={n}]", "{t} INFO [{l}: {n}]", "{t} [{k}={n}]", "/* [{l}{o}: {n}] */", "[ ] [{l} {n}]", "1. [the {l}{o} is {n}]",
    "    return {n}  # [{l}{o}]", "static [{K}: usize = {n}];", "var [{k} = {n}]", "print(\"[{l}: {n}]\")", "[{L} {n}]", "> [the {l}{o} is {n}]", "<!-- [{l}: {n}] -->", "-- [{l} {n}]", "[{l}\t{n}]"]
ALONE = ["[{n}].", "[{n}].", "[{n}].", "[{n}]", "[{n}]", "[{n}]!", "- [{n}]", "\n[{n}]\n", "\"[{n}]\"", "... [{n}] ...", "* [{n}] *", "[{n}]:", "[{n}]?", "**[{n}]**", "[{n}]\n"]
ONLY = ["They counted [{n}] {w2}s in the {w3}.", "Only [{n}] of them came back.", "He paid [{n}] for the {w2}.", "[{n}] {w2}s stood near the {w3}.", "It took [{n}] days.", "She wrote [{n}] on the {w2} and left.", "On the {w2} stood [{n}].", "They painted [{n}] over the {w2}.",
        "The {w2} showed [{n}].", "[{n}], said the {w2}.", "Nobody knew what [{n}] meant.", "At the bottom of the {w2} was [{n}].", "The {w2} number [{n}] was closed.", "And then, out of nowhere, [{n}] appeared.", "{w} shouted [{n}] and ran.", "I dreamt of [{n}] again.",
        "let {w2} = [{n}];", "{w2}: [{n}]", "    {w2}({w3}, [{n}])", "{w2} {w3} [{n}] {w2}", "// {w2} [{n}]"]
GENERIC = ["hidden number", "hidden number", "secret number", "number", "number", "only number", "number in the text"]
ASK_GENERIC = ["What number is hidden in this text?", "Which number is hidden here?", "What number is in there?", "Find the hidden number.", "What is the hidden number?", "Which number do you see?", "There is a number in this text. Which?", "Find the number.", "What is the number?",
               "Which number is written in the text?", "What number is mentioned?", "Tell me the number in the text.", "Which number stands in the text?", "Can you find the number?", "Is there a number in it?", "Which number did I hide?", "I hid a number in the text. Find it.",
               "Look for a number.", "What's the number hidden in this?", "Give me the number.", "find the hidden number", "the number?", "Which number is it?", "What number occurs in this text?", "Search for the number in this text.", "Spot the number."]
ASK_NAMED = ["According to the text, what is the {s}?", "Which {s} is given?", "What does the text say is the {s}?", "What {s} is mentioned?", "Which {s} is mentioned above?", "I need the {s} from this text.", "What's the {s}?", "the {s}?", "{s}?", "Please look up the {s}.", "Can you find the {s} in it?",
             "Which number is the {s}?", "How much is the {s}?", "What would be the {s}?", "Do you know the {s} now?", "I lost the {s}. It is in this text.", "So what is the {s}?", "Which is the {s}?", "find {s}", "Extract the {s}.", "Read out the {s}.", "What is the {s} again?",
             "What did it say about the {s}?", "Does the text give the {s}?", "Look up the {s} for me.", "Quote the {s}.", "Return the {s}.", "What must I enter as the {s}?", "Hey, what's the {s}?", "Where is the {s}, and what is it?", "What is the {s} in the text above?"]


SHORT_NAMES = ["[{L} {n}]", "[{L} no. {n}]", "[{L} #{n}]", "[{l} {n}]", "[{l} no. {n}]", "[{l} nr {n}]", "[{L} No. {n}]"]
SHORT_TEXTS = ["{x} is yours.", "{x}.", "{x}", "Mention {x} when you call.", "{w} waits in {x}.", "{x} was cancelled.", "We are in {x} today.", "Go to {x}, please.", "{x} has been sent.", "They gave me {x}, which nobody liked.", "It is {x} again.",
               "Please confirm {x} before noon.", "You will find it under {x}.", "{w} complained about {x}.", "{x} will not be needed.", "This concerns {x}.", "- {x}", "# {x}", "{x}: {w}", "Regarding {x}, nothing is new.", "{w} signed for {x}.", "Without {x} nothing moves."]
BASES = """ticket order invoice room flight platform locker seat table gate page apartment floor bus channel lot policy contract file shelf box
container parcel hall group team item article bill receipt chapter case track lane pier desk cabin tent booth row claim account
customer member model part bench plot street bay slot version rule form exercise question lesson card house""".split()
WHICH = ["Which {s} do I need?", "Which {s} are we in?", "what {s} is it?", "Which {s} is mine?", "What {s} did they give me?", "Which {s} was it again?", "what {s} must I use?", "Which {s} does {w} want?", "which {s} should {w} go to?", "Which {s} is it about?",
         "What {s} shall I tell {w}?", "Which {s} opens it?", "Which {s} is named?", "on which {s} is it?", "In which {s}?", "What {s} is that?", "Which {s} do they mean?", "what {s} will be used?", "Which {s} did {w} write down?", "Which {s} are you talking about?",
         "What {s} would you type?", "Which {s} are they {w2} in?", "which {s} can we {w2}?", "What {s} should I {w2}?", "Which {s} is {w2} {w3}?", "Which {s} has {w} {w2}?", "What {s} do you {w2} at the {w3}?"]


def number_text(rng):
    """The number as it stands in the text: mostly three to six digits."""
    digits = rng.choice([2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 6, 7, 8])
    number = str(rng.randint(10 ** (digits - 1), 10 ** digits - 1))
    return "0" * rng.randint(1, 2) + number[2:] if rng.random() < 0.04 else number


def label_of(rng):
    """What a number is called: from the list, or words put together."""
    kind = rng.random()
    if kind < 0.7:
        return rng.choice(LABELS)
    if kind < 0.9:
        return f"{any_word(rng)} {rng.choice(['code', 'number', 'key', 'count', 'id', 'limit', 'size', 'total', 'pin', 'price', 'value'])}"
    return f"{any_word(rng)} {any_word(rng)}"


def owner_of(rng):
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(W.SECRET_OWNERS)
    if kind < 0.6:
        return W.any_name(rng)
    return f"{rng.choice(['the', 'the', 'my', 'our'])} {rng.choice(W.ADJECTIVES) + ' ' if rng.random() < 0.4 else ''}{any_word(rng)}"


def planted(rng, template, label, owner, number):
    """(unit, quote): a needle with the part that is quoted."""
    gap = rng.choice("__-. ") if " " in label else "_"
    text = template.format(l=label, L=label[0].upper() + label[1:], o=f" {owner}" if owner else "", n=number, k=label.lower().replace(" ", gap), K=label.upper().replace(" ", "_"),
                           w=W.any_name(rng), w2=any_word(rng), w3=any_word(rng), t=f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}")
    first, last = text.index("["), text.rindex("]")
    if template.count("[") > 1:      # a check box in front of the quote
        first = text.index("[", first + 1)
    quote = text[first + 1:last]
    unit = text[:first] + quote + text[last + 1:]
    if number not in quote:          # the number stands behind the label: quote up to it
        quote = unit[first:unit.index(number, first) + len(number)] if number in unit[first:] else unit[unit.index(number):].rstrip(" .")
    return unit, quote


def needle(rng, lines, label, owner, number):
    """A named number in a sentence, or in a line of its own where the text has lines."""
    template = rng.choice(LINES if lines and rng.random() < 0.7 else SENTENCES)
    if owner and "{o}" not in template:
        template = "[The {l}{o} is {n}]."
    return planted(rng, template, label, owner, number)


def layout(rng, text, question):
    """The text and the question in one of the orders and frames a user may choose."""
    if rng.random() < 0.12:
        text = rng.choice(["```\n{t}\n```", "\"{t}\"", "---\n{t}\n---", "<text>\n{t}\n</text>", "Text:\n{t}", "> {t}", "=====\n{t}\n====="]).format(t=text)
    gap = rng.choice(["\n", "\n\n", "\n", " "])
    if rng.random() < 0.6:
        return text + gap + question
    return question.rstrip(".") + rng.choice([":", "", ".", " in this text:"]) * (not question.endswith("?")) + gap + text


def question_for(rng, subject, generic, held_out):
    """(request with {t} for the text, what the answer calls the number)."""
    if held_out:
        return rng.choice(HIDDEN_PHRASINGS[4::5]).format(t="{t}", s=subject), subject
    if rng.random() < 0.4:
        return pick_phrasing(rng, HIDDEN_PHRASINGS, False, compose_hidden).format(t="{t}", s=subject), subject
    ask = rng.choice(ASK_GENERIC if generic else ASK_NAMED if rng.random() < 0.7 else WHICH)
    if not generic and " for " not in subject and rng.random() < 0.3:
        ask = ask.replace("the {s}", rng.choice(["my {s}", "our {s}", "his {s}", "the right {s}", "this {s}", "her {s}"]))
    ask = ask.format(s=subject, w=W.any_name(rng), w2=any_word(rng), w3=any_word(rng))
    return layout(rng, "{t}", join(ask) if rng.random() < 0.85 else ask), "hidden number" if generic else subject


def insert(rng, units, unit):
    units.insert(rng.randint(0, len(units)), unit)


def hidden_turn(rng, units, joiner, subject, quote, number, generic, held_out, thinking):
    text = joiner.join(units).strip()
    user, subject = question_for(rng, subject, generic, held_out)
    user = user.replace("{t}", text)
    if not held_out and len(user) < 1500:
        user = dress(rng, user)
    if quote not in user:            # the first letter of the text may have changed
        quote = quote[0].lower() + quote[1:]
    think = f"I look for the {subject}.\n"
    if number is None:
        answer, think = f"I do not find the {subject} in the text.", think + "The text does not say."
        return Turn("hidden", user, think if thinking else "", answer, answer, held_out=held_out)
    return Turn("hidden", user, think + f"The text says: {quote}" if thinking else "", f"The {subject} is {number}", number, held_out=held_out)


def make_alone(rng, held_out, thinking, tokens):
    """A bare number: alone between the sentences, or the only number of the text."""
    alone, number = rng.random() < 0.65, number_text(rng)
    units, joiner, _ = make_text(rng, tokens, numbers=alone and rng.random() < 0.6)
    units = [u for u in units if re.search(r"[^\W\d]", u)]      # no other number stands alone
    unit, quote = planted(rng, rng.choice(ALONE if alone else ONLY), "number", None, number)
    if len(units) < 2:
        units = filler(rng, 4)
        units = [u for u in units if not re.search(r"\d", u)] or ["Nothing happened."]
    insert(rng, units, unit)
    return hidden_turn(rng, units, joiner, rng.choice(GENERIC), quote, number, True, held_out, thinking)


def make_named(rng, held_out, thinking, tokens, missing):
    """One to four named numbers, one of which is asked for (or none, if it is missing)."""
    units, joiner, _ = make_text(rng, tokens, numbers=rng.random() < 0.75)
    lines, label, number = joiner == "\n", label_of(rng), number_text(rng)
    owner = f"{rng.choice(OWNER_JOINTS)} {owner_of(rng)}" if rng.random() < 0.35 else None
    subject = f"{label} {owner}" if owner else label
    last = label.split()[-1].lower()
    units = [u for u in units if not (last in u.lower() and re.search(r"\d", u))]
    unit, quote = needle(rng, lines, label, owner, number)
    if not missing:
        insert(rng, units, unit)
    used, others = {subject, label}, rng.choice([0, 0, 1, 2, 3]) + missing * rng.choice([0, 1, 1])
    for _ in range(others):
        if owner and rng.random() < 0.5:
            label2, owner2 = label, f"{owner.split()[0]} {owner_of(rng)}"
        else:
            label2, owner2 = label_of(rng), f"{rng.choice(OWNER_JOINTS)} {owner_of(rng)}" if rng.random() < 0.3 else None
        subject2 = f"{label2} {owner2}" if owner2 else label2
        if subject2 in used or any(word in label2.split() for word in label.split()) and label2 != label or label2 == label and not owner:
            continue
        used.add(subject2)
        insert(rng, units, needle(rng, lines, label2, owner2, number_text(rng))[0])
    generic = False
    if len(used) == 2 and not missing and rng.random() < 0.2:
        generic = rng.random() < 0.6
        subject = rng.choice(["hidden number", "secret number"]) if generic else label.split()[-1]
    return hidden_turn(rng, units, joiner, subject, quote, None if missing else number, generic, held_out, thinking)


def make_short_named(rng, held_out, thinking, tokens):
    """Things known by their number: "invoice no. 17", asked for as "invoice" or "invoice number"."""
    units, joiner, _ = make_text(rng, tokens, numbers=rng.random() < 0.6)
    bases = rng.sample(BASES, rng.choice([1, 1, 2, 3]))
    if rng.random() < 0.2:
        bases[0] = any_word(rng)
    units = [u for u in units if not (bases[0] in u.lower() and re.search(r"\d", u))]
    for base in reversed(bases):
        number = number_text(rng)
        named = rng.choice(SHORT_NAMES).format(l=base, L=base.capitalize(), n=number)
        template = rng.choice(SHORT_TEXTS)
        if not template.startswith("{x}") and named[1].isupper() and rng.random() < 0.7:
            named = named[0] + named[1].lower() + named[2:]
        unit, quote = planted(rng, template.replace("{x}", named), base, None, number)
        insert(rng, units, unit)
    subject = rng.choice([bases[0], f"{bases[0]} number", f"{bases[0]} number", f"number of the {bases[0]}"])
    return hidden_turn(rng, units, joiner, subject, quote, number, False, held_out, thinking)


def make_plain(rng, held_out, thinking, tokens):
    """The sentences of earlier versions: a number of something in simple prose."""
    units = filler(rng, max(1, round(tokens / 13.5)))
    kind, needles, owner = secret_subject(rng)
    number = number_text(rng)
    text = rng.choice(needles).format(k=kind, o=owner, n=number)
    insert(rng, units, text)
    subject = kind if owner is None else f"{kind} {owner}"
    used = {subject}
    for _ in range(rng.choice([0, 0, 1, 2, 3])):
        kind2, needles2, owner2 = secret_subject(rng)
        subject2 = f"{kind2} {owner2}"
        if owner2 is None or owner2 == owner or subject2 in used:
            continue
        used.add(subject2)
        insert(rng, units, rng.choice(needles2).format(k=kind2, o=owner2, n=number_text(rng)))
    return hidden_turn(rng, units, "\n" if rng.random() < 0.1 else " ", subject, text.rstrip("."), number, False, held_out, thinking)


def make_hidden(rng, held_out=False, core=False, thinking=True, tokens=None):
    """A text of about `tokens` tokens with a hidden number, and the question for it."""
    if tokens is None:
        tokens = rng.randint(40, 1200)
    kind = rng.random()
    if kind < 0.16:
        return make_plain(rng, held_out, thinking, tokens)
    if kind < 0.32:
        return make_short_named(rng, held_out, thinking, tokens)
    if kind < 0.52:
        return make_alone(rng, held_out, thinking, tokens)
    return make_named(rng, held_out, thinking, tokens, missing=not core and rng.random() < 0.12)
