"""Word lists the generators draw from: all written for this project."""

NAMES = """Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karl Lena Max Nora Oscar Paula Quentin Rosa
Simon Tara Ulrich Vera Walter Xenia Yusuf Zoe Alice Boris Carmen Dmitri Elena Farid Gita Hugo Ines Jonas
Kofi Leila Marco Nina Omar Priya Rafael Sofia Tomas Uma Victor Wanda Ying Zara Aisha Bruno Chen Dora Eli
Fiona George Hana Ivan Julia Kenji Laura Miguel Naomi Olga Peter Rita Sven Tina Umar Viola Wei Yara Adam
Bella Carl Diana Erik Frida Gustav Helen Igor Jana Kurt Lily Mia Noah Otto Pia Ruth Sam Theo Ursula Vince
Mary John Robert Linda James Susan Paul Mark Kate Tom Lucy Liam Olivia Ethan Amelia Lucas Isabel Mateo""".split()

CITIES = """Paris London Berlin Madrid Rome Vienna Oslo Lisbon Athens Prague Dublin Warsaw Cairo Tokyo Lima
Delhi Boston Chicago Toronto Sydney Nairobi Lagos Quito Seoul Zurich Geneva Hamburg Munich Krakow Porto
Bergen Turin Lyon Ghent Basel Graz Riga Tallinn Bogota Havana""".split()

COLOURS = """red blue green yellow orange purple brown black white grey pink silver golden violet turquoise""".split()

NOUNS = """river mountain garden house window door table chair lamp road bridge forest field boat ship train
station market village city tower castle school teacher student doctor farmer baker painter sailor captain
soldier king queen child brother sister mother father friend neighbour dog cat horse bird fish sheep cow
mouse wolf fox bear owl tree flower leaf root apple pear cherry bread cheese soup kettle bottle cup plate
spoon knife basket box bag letter book page story song picture map clock key coin ring coat hat shoe glove
blanket carpet mirror candle fire smoke stone sand water rain snow wind storm cloud sun moon star night
morning evening summer winter spring autumn day week year hour minute moment journey path corner wall roof
floor kitchen cellar attic stairs yard fence gate barn mill well pond lake island harbour beach wave shore
hill valley meadow desert cave engine wheel wagon bicycle car truck plane airport ticket suitcase office
factory machine tool hammer nail rope ladder bucket brush paint paper pencil ink museum theatre library
church hospital hotel restaurant garage shop bank post number answer question reason problem idea plan
list rule game team match prize party dinner lunch breakfast meal holiday weather language word sentence
voice sound noise music piano guitar violin drum film camera phone computer screen program file system
message network model memory value signal sensor battery cable light colour shape line circle square""".split()

ADJECTIVES = """old young big small long short high low wide narrow bright dark warm cold hot cool dry wet
clean dirty quiet loud fast slow heavy light strong weak rich poor happy sad angry calm kind cruel brave
shy clever simple strange common rare empty full open closed broken new ancient modern green blue red grey
white black golden silver wooden round flat sharp soft hard sweet bitter fresh stale late early busy lazy
careful careless gentle rough smooth hidden famous unknown distant near lonely crowded pretty plain tall
deep shallow thick thin tired sleepy hungry thirsty curious honest proud modest useful useless""".split()

VERBS_PAST = """saw found lost carried opened closed painted cleaned moved pushed pulled bought sold kept
left reached crossed followed watched heard called met helped liked loved hated feared wanted needed used
made built broke fixed changed turned lifted dropped threw caught held covered filled emptied washed
noticed remembered forgot described drew wrote read sang played visited passed entered searched examined
measured counted sorted shared offered accepted refused prepared cooked tasted served""".split()

VERBS_MOVE = """walked ran went drove sailed flew travelled hurried climbed wandered jumped rode came
returned marched swam rolled slid fell stood waited slept sat rested worked""".split()

PREPOSITIONS = """near behind beside under above across along around through past towards beyond before
inside outside against between opposite""".split()

TIMES = """in the morning|in the evening|at night|at noon|after lunch|before dinner|last year|last week|on Monday|
on Tuesday|on Friday|on Sunday|in spring|in summer|in autumn|in winter|every day|once a week|long ago|
later that day|the next morning|after a while|for a long time|without a word|as usual|by chance|
all of a sudden|in the end|at first|now and then""".replace("\n", "").split("|")

LINKS = """However|Meanwhile|Later|Soon|Still|Then|Therefore|Besides|Finally|Afterwards|Nevertheless|Indeed|
Instead|Sometimes|Often|Usually|Perhaps|Of course|In fact|For example""".replace("\n", "").split("|")

VARIABLE_WORDS = """alpha beta gamma delta apples pears coins points score total count level speed price width
height depth size weight age left right first last north south east west""".split()

SECRET_OWNERS = """the red door|the blue door|the green box|the old safe|the garden gate|the wine cellar|
the north tower|the south gate|the main server|the backup server|the staff room|the bicycle lock|
the locker|the mailbox|the garage|the lift|the alarm|the printer|the archive|the vault|the boat house|
the kitchen|the laboratory|the library|the museum|the office|the attic|the greenhouse|the control room|
the storage room""".replace("\n", "").split("|")

SYSTEM_PROMPTS = ["You are a helpful assistant.", "You are a small assistant inside dmschat.",
                  "Answer briefly.", "Be precise and check every step.", "You are Demo, the built-in model.",
                  "Think step by step.", "You help with numbers.", "Answer in English.",
                  "You are a careful calculator.", "Be kind and short.", "Always be polite.",
                  "The user is learning how caches work."]

SYLLABLES = """ba be bi bo bu da de di do du fa fe fi fo ga ge gi go ha he hi ho ja jo ka ke ki ko la le li lo
lu ma me mi mo mu na ne ni no nu pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we
wi za ze zi zo tha sha cha bra kri sto pla gre fran ster ner ling mon ton ber""".split()


def made_up_word(rng, low=2, high=4):
    """A pronounceable word that is in no list, so that names and texts are not limited to the lists."""
    word = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(low, high)))
    return word + rng.choice(["", "", "n", "s", "r", "l", "t", "m"])


ACCENTED = """José Zoë André Chloé Søren Björn Mélanie Łukasz Ağa Márta Ødegaard Noël Renée Jörg Käthe Günter Iñigo Beyoncé Ève Šárka
Åsa Ümit Émile Raúl Núria""".split()


MARKS = {"a": "áàäâãåă", "e": "éèëêę", "i": "íìïî", "o": "óòöôõø", "u": "úùüû", "c": "çčć", "s": "šşś", "n": "ñńň", "z": "žźż", "y": "ýÿ", "l": "ł", "r": "ř", "d": "ďđ"}


def any_name(rng):
    """A name: mostly from the list, a third made up, some with a family name or accents."""
    if rng.random() < 0.06:
        name = rng.choice([rng.choice(NAMES), made_up_word(rng).capitalize(), rng.choice(ACCENTED)])
        return name.translate({ord(a): rng.choice(b) for a, b in MARKS.items() if rng.random() < 0.5})
    if rng.random() < 0.08:
        return f"{rng.choice(NAMES)} {made_up_word(rng).capitalize()}"
    if rng.random() < 0.35:
        return made_up_word(rng).capitalize()
    return rng.choice(NAMES)
