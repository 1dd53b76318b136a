"""Requests outside the tasks put together from parts: errands, devices, news, opinions, facts of the world."""
import re

import data.words as W

PEOPLE_WORDS = """mother father brother's wife doctor boss neighbour teacher landlord dentist lawyer grandmother uncle aunt
cousin plumber electrician coach manager colleague husband office bank police school hospital taxi company""".replace("brother's wife", "nephew").split()
CONTACT = """phone ring text message e-mail mail contact dial invite greet warn thank wake fetch visit meet pay hire notify congratulate
page follow find ask tell help kiss hug block unblock answer video-call call write-to talk-to speak-to reply-to listen-to look-for
wait-for send-for pick-up drive-to check-on cook-for sing-for""".split()
LATER = ["now", "at once", "please", "tomorrow", "tonight", "for me", "today", "again", "later", "on Monday", "at noon", "before dinner",
         "right away", "after work", "if you can", "and say hello", "about the {noun}", "that I am late", "at {a}", "in {a} minutes", "in {city}"]
DEVICES = """lamp TV heating music alarm radio oven volume camera robot wifi car garage-door front-door curtains fan printer washing-machine
coffee-machine dishwasher heater vacuum phone tablet laptop kettle speaker thermostat lights playlist film video song podcast""".split()
SWITCH = ["open", "close", "start", "stop", "play", "pause", "lock", "unlock", "turn up", "turn down", "turn on", "turn off", "switch on", "mute", "dim",
          "charge", "print", "scan", "download", "install", "update", "restart", "connect", "find", "clean", "repair", "check", "hide", "record", "stream"]
PUBLIC = """weather forecast temperature time date score headline exchange-rate price-of-gold price-of-oil traffic schedule timetable humidity
pollen-count moon-phase tide lottery-number menu programme winner result-of-the-match standings latest-hit bestseller top-story stock-price
president population fashion gossip rumour scandal update situation mood season holiday weekday sunrise sunset plan agenda""".split()
WHEN = ["", "", "", "today", "tomorrow", "now", "this week", "tonight", "in {city}", "in {place}", "for Monday", "at the moment", "here", "there", "this year"]
TOPICAL = ["headlines", "stories", "events", "results", "rumours", "updates", "articles", "reports", "trends", "facts", "changes", "news stories"]
QUALITIES = """nice pretty common rare strange famous boring funny old-fashioned modern English French German Spanish Italian boy's girl's
cool silly beautiful popular short long stupid lovely great bad suitable typical unusual real lucky""".split()
SORTS = """name person friend word place student teacher man woman cook dancer singer colleague neighbour child runner leader title city dog doctor
player writer story joke idea gift""".split()
ABOUT_US = {"window", "memory", "model", "program", "value", "number", "system", "language", "key", "name"}   # have answers of their own
MEASURES = """population height area age price weight colour temperature speed size history length smell taste meaning shape purpose origin
capital climate religion anthem currency flag culture economy owner maker name secret sound depth value density symbol nickname""".split()
ORDERS = ["order", "buy", "get me", "bring me", "I would like to order", "I want to buy", "reserve", "book", "rent", "sell", "deliver", "ship",
          "return", "find me", "show me", "recommend me", "pay for", "cancel", "cook me", "make me", "lend me", "draw me", "give me", "fetch me"]
GOODS = """pizza burger ticket table hotel-room flight taxi cake coffee sandwich car bike phone book dress suit flower bouquet sofa guitar
newspaper magazine beer train-ticket haircut massage room present birthday-card loan salad""".split()
MOODS = ["tired", "bored", "happy", "hungry", "ill", "sick", "late", "angry", "in love", "busy", "lost", "cold", "scared", "sorry", "back", "ready", "lonely",
         "done", "at work", "on holiday", "nervous", "unsure", "awake", "so excited", "out of money", "a bit sad", "not well", "getting married"]


def parts_request(rng):
    """One request with holes left for words of the lists."""
    c, spaced = rng.choice, lambda words: rng.choice(words).replace("-", " ")
    who = c(["{name}", "{name}", "{name}", "my " + c(PEOPLE_WORDS), "the " + c(PEOPLE_WORDS), "{name} and {name}", "a " + c(PEOPLE_WORDS)])
    mark = c([".", ".", ".", "", "!"])
    frame = c(["{x}", "{x}", "{x}", "can you {x}", "could you {x}", "please {x}", "I want to {x}", "I must {x}", "should I {x}", "I will {x}", "how do I {x}",
               "do not {x}", "remind me to {x}", "I need you to {x}", "when can I {x}", "will you {x}", "let us {x}", "I forgot to {x}", "help me to {x}"])
    end = "?" if frame.split()[0] in ("can", "could", "should", "how", "when", "will") else mark
    kind = rng.randrange(12)
    if kind < 3:        # errands with people
        verb = spaced(CONTACT)
        deed = c([f"{verb} {who}", f"{verb} {who}", f"{verb} {who} " + c(LATER), f"send {who} a " + c(["message", "letter", "card", "photo", "text"]),
                  f"give {who} " + c(["a call", "a ring", "my regards", "the {noun}", "a {noun}"]), f"let {who} know", f"make a call to {who}"])
        return frame.replace("{x}", deed) + end
    if kind == 3:       # devices
        device = spaced(DEVICES)
        return frame.replace("{x}", c([f"{c(SWITCH)} the {device}", f"{c(SWITCH)} my {device}", f"{c(SWITCH)} the {device} " + c(LATER),
                                       f"set the {device} to {{a}}"])) + end
    if kind < 6:        # what goes on in the world
        thing, when = spaced(PUBLIC), c(WHEN)
        return c([f"what is the {thing} {when}?", f"what is the {thing} {when}?", f"what's the {thing} {when}?", f"tell me the {thing} {when}.",
                  f"how is the {thing} {when}?", f"do you know the {thing} {when}?", f"give me the {thing} {when}.", f"what was the {thing} yesterday?",
                  f"who has the {thing} {when}?", f"any {c(TOPICAL)} {when}?", f"what are the {c(['latest', 'top', 'best', 'new', 'main'])} {c(TOPICAL)} {when}?",
                  f"show me the {c(TOPICAL)} {when}.", f"read me the {c(TOPICAL)} {when}.", f"what are the {c(TOPICAL)} {when}?",
                  f"what happened {c(['to', 'in', 'near'])} {c(['{name}', '{city}', '{place}', 'the {noun}'])}?", f"is there {c(['news', 'anything new', 'a storm', 'traffic'])} {c(['from', 'in', 'about'])} {{place}}?",
                  f"what do the papers say {when}?", f"what is {c(['trending', 'going on', 'happening', 'on', 'up'])} {when}?"])
    if kind == 6:       # opinions of names and things
        return c([f"is {{name}} a {c(QUALITIES)} {c(SORTS)}?", f"is {{name}} a {c(QUALITIES)} {c(SORTS)}?", f"is that a {c(QUALITIES)} {c(SORTS)}?",
                  f"is {{noun}} a {c(QUALITIES)} word?", "do you like the name {name}?", "what does the name {name} mean?", "how do you spell {name}?",
                  "where does the name {name} come from?", "is {name} a boy or a girl?", "who is called {name}?", f"would {{name}} be a {c(QUALITIES)} {c(SORTS)}?",
                  "should I call my son {name}?", f"which is the more {c(QUALITIES)} {c(SORTS)}, {{name}} or {{name}}?", f"is {{name}} {c(QUALITIES)}?", f"was {{name}} a {c(QUALITIES)} {c(SORTS)}?",
                  f"suggest a {c(QUALITIES)} name for a {{noun}}.", "what do you think of {name}?", "do you know anybody called {name}?", "is {name} older than {name}?"])
    if kind == 7:       # facts of the world
        of = c(["{place}", "{city}", "{person}", "a {noun}", "the {noun}", "{topic}", "the moon", "my {noun}"])
        return c([f"what is the {c(MEASURES)} of {of}?", f"tell me the {c(MEASURES)} of {of}.", f"what {c(MEASURES)} has {of}?", f"compare the {c(MEASURES)} of {of} and {of}.",
                  f"how do I measure the {c(MEASURES)} of {of}?", f"does {of} have a {c(MEASURES)}?", f"which {c(SORTS)} has the {c(QUALITIES)} {c(MEASURES)}?"])
    if kind == 8:       # orders
        thing = c([spaced(GOODS), "{noun}", "{adj} {noun}"])
        amount = c([f"a {thing}", f"a {thing}", f"{{a}} {thing}s", f"a {thing} for {{name}}", f"a {thing} from {{city}}", f"the {thing}"])
        return f"{c(ORDERS)} {amount} {c(['', '', c(LATER)])}".strip() + mark
    if kind == 9:       # short questions about single things
        noun = c([n for n in (c(W.NOUNS), c(W.NOUNS), "{madeup}") if n not in ABOUT_US] or ["river"])
        return c([f"what is the {noun}?", f"where is the {noun}?", f"who has the {noun}?", f"what about the {noun}?", f"how is the {noun}?", f"whose {noun} is this?",
                  f"what is your {noun}?", f"which {noun}?", f"the {noun}?", f"is this the {noun}?", f"what are {noun}s?", f"why the {noun}?", f"and the {noun}?"])
    if kind == 10:      # moods and plans
        return c([f"I am {c(MOODS)}{mark}", f"I'm {c(MOODS)}{mark}", f"I feel {c(MOODS)}{mark}", f"we are {c(MOODS)}{mark}", f"{{name}} is {c(MOODS)}{mark}", f"you are {c(MOODS)}{mark}",
                  f"are you {c(MOODS)}?", f"why am I {c(MOODS)}?", f"I was {c(MOODS)} yesterday{mark}", f"I am {c(MOODS)} and {c(MOODS)}{mark}", f"I am not {c(MOODS)}{mark}",
                  f"I am going to {{city}}{mark}", f"I am reading a {{noun}}{mark}", f"I am {c(['afraid', 'tired', 'fond', 'proud'])} of {{noun}}s{mark}"])
    return c(["take me to {city}.", "show me the way to {city}.", "set a timer for {a} minutes.", "wake me up at {a}.", "add {noun} to my list.", "note: buy {a} {noun}s.",
              "put {noun} on the list.", "how far is {city} from {city}?", "when does the train to {city} leave?", "is the shop open?", "what should I wear " + c(LATER) + "?",
              "translate: I would like a {noun}.", "say it in {lang}.", "write to {name} that the {noun} is {adj}.", "what is {name} doing?", "where did {name} go?",
              "when is {name} coming?", "why did {name} leave?", "did {name} call?", "has {name} written?", "tell {name} a joke.", "play {a} questions.",
              "what is next?", "who won?", "who is there with {name}?", "what else is new?", "how much is a {noun}?", "how much are {a} {noun}s in {city}?"])


def shape_of(template):
    """A regular expression that matches a template with its holes filled."""
    hole = {"a": r"\d+", "b": r"\d+", "c": r"\d+"}
    parts = re.split(r"\{(\w+)\}", template.rstrip(".?!"))
    words = r"(?!(?:the|a|an|my|your) )\S+(?: \S+)?"
    return "".join(re.escape(p) if i % 2 == 0 else hole.get(p, words) for i, p in enumerate(parts))


def matcher(templates):
    """A function that says whether a filled text is one that these templates could give."""
    shape = re.compile("|".join(map(shape_of, templates)), re.IGNORECASE)
    return lambda text: shape.fullmatch(text.rstrip(".?! ")) is not None
