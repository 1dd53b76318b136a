"""Small talk put together from parts, and short fragments that are no request: what people type before they ask."""
import data.words as W
from data.texts import Repository, any_word

FACES = ["", "", "", "", "", "", "!", "!", ".", ".", "...", "!!", " :)", "?!", "~", " ;-)"]
WHOM = ["", "", "", "", "there", "you", "all", "everyone", "everybody", "friend", "my friend", "buddy", "mate", "pal", "bot", "computer", "machine", "Demo",
        "dmschat", "AI", "robot", "assistant", "folks", "sir", "guys", "dude", "old friend", "little model", "model", "program", "team", "again", "you two", "dear"]

HELLO = ["hi", "hello", "hey", "hi", "hello", "hey", "howdy", "greetings", "good morning", "good evening", "good afternoon", "good day", "morning", "evening", "hullo", "hallo",
         "heya", "hi hi", "well hello", "oh hi", "oh hey", "ahoy", "g'day", "helloo", "hii", "heyy", "hiho", "hola", "hello hello", "cheerio, hello", "a good morning", "many greetings", "warm greetings", "hey hi",
         "welcome", "good to see you", "nice to meet you", "pleased to meet you", "nice to see you", "happy to meet you", "glad to meet you", "how nice to meet you"]
HELLO_TAILS = ["", "", "", "", ", nice to meet you", ", I am new", ", I am new to this", ", just trying this out", ", I just installed this", ", here I am", ", glad to be here", ", let us begin", ", ready?", ", shall we start?",
               ", can you hear me?", ", are you awake?", ", is this thing on?", ", I am back", ", it's me", ", me again", ", what a day", ", good to see you", ", I have just arrived", ", I wanted to say hello", ", anybody in?"]
PRESENCE = ["can you hear me", "are you there", "are you awake", "do you read me", "is somebody in", "is anybody home", "is someone at home", "are you listening", "are you online", "are you ready", "can we start", "shall we begin", "are you with me",
            "do you hear me", "are you still there", "you there", "you awake", "I just arrived", "just saying hello", "I came to say hello", "let's start", "let us begin", "I am back", "here I am", "here we go", "I am ready", "ready when you are", "let's get going"]

THANKS = ["thanks", "thank you", "thanks", "thank you", "thx", "many thanks", "thanks a lot", "thanks so much", "thank you so much", "thank you very much", "thanks a bunch", "thanks a ton", "big thanks", "my thanks", "I thank you",
          "I am grateful", "I appreciate it", "I appreciate that", "how kind of you", "that is kind", "cheers", "a thousand thanks", "thank you kindly", "thankyou", "thanx", "tks", "thanks again", "thank you again", "ok thanks", "great, thanks",
          "yes, thanks", "no more, thanks", "good, thank you", "perfect, thank you", "ah, thanks", "oh thank you", "all good, thanks"]
FOR_WHAT = ["", "", "", "", " for that", " for the help", " for your help", " for helping", " for your time", " for the answer", " for everything", " for your patience", " for all", " for being here", " for the explanation", " for nothing",
            ", that helped", ", that was right", ", very kind", ", good work", ", you saved me", ", that is what I needed", ", I needed that", ", exactly right"]
PRAISE = """great good excellent superb wonderful brilliant perfect fantastic terrific fabulous marvellous splendid outstanding amazing awesome incredible
magnificent impressive lovely neat nice fine superb stellar remarkable phenomenal spectacular""".split()
PRAISED = ["{p}", "{p}", "{p} work", "{p} job", "{p} answer", "that is {p}", "that was {p}", "this is {p}", "how {p}", "really {p}", "very {p}", "just {p}", "simply {p}", "wow, {p}", "oh, {p}", "{p} stuff", "{p} one", "so {p}", "absolutely {p}",
           "what a {p} answer", "you did {p} work", "that looks {p}", "{p}, well done", "that went {p}", "{p} result", "ah, {p}", "pretty {p}"]
WORKED = ["it works", "that worked", "that helped", "that helped a lot", "that was quick", "that was fast", "that is right", "that's correct", "correct", "quite right", "you are right", "you were right", "right answer", "you did it",
          "you got it", "I like it", "I love it", "I like that", "I am impressed", "I am happy with that", "just what I needed", "exactly what I wanted", "good one", "well played", "bravo", "hooray", "yay", "kudos", "hats off", "chapeau",
          "very helpful", "very kind", "so helpful", "so kind of you", "how helpful", "not bad", "not bad at all", "congratulations", "keep it up", "clever", "smart", "that makes me happy", "you saved my day", "good for you", "well, well done"]

BYE = ["bye", "goodbye", "bye bye", "bye", "good night", "farewell", "see you", "see you later", "see you soon", "see you tomorrow", "see you next week", "see you around", "until tomorrow", "until next time", "till later", "so long",
       "take care", "have a good day", "have a nice day", "have a nice evening", "have a good one", "have fun", "adieu", "ciao", "cheerio", "toodles", "later then", "talk to you later", "talk soon", "I have to go", "I must go", "I must leave",
       "I am leaving", "I am leaving now", "I am going", "I am going home", "I need to go", "I need to leave", "I should go", "I will go now", "time to go", "time to leave", "gotta run", "got to go", "I am done for today", "that is all for today",
       "that's it for now", "that was all", "enough for today", "we are done", "I quit", "I am out", "I will be back", "back tomorrow", "we will talk tomorrow", "sleep well", "good bye", "godspeed", "over and out", "closing now"]
BYE_TAILS = ["", "", "", "", ", thanks", ", take care", ", see you", ", sleep well", " for now", " then", " for today", ", it was fun", ", good night", ", have a nice day", ", until next time", " now", ", was nice"]

STATE = ["how are you", "how are you doing", "how are you feeling", "how do you feel", "how is it going", "how's it going", "how are things", "how are things going", "how is everything", "how's everything", "how is life", "how's life",
         "how have you been", "how have things been", "how did you sleep", "how was your day", "how is your day", "how's your day", "how was your night", "how was your week", "how is your mood", "how is your health", "how goes it", "how goes the day",
         "how do you do", "are you well", "are you fine", "are you okay", "are you alright", "are you doing well", "are you feeling well", "is everything fine", "is everything well", "is everything all right", "everything fine", "everything alright",
         "all well", "all fine", "all okay", "doing well", "feeling good", "you doing okay", "you good", "you well", "what's up", "whats up", "what is up", "what is going on", "what's going on with you", "what are you up to", "what's happening",
         "what's the news with you", "how you doing", "how ya doing", "how r u", "hru", "how are ya", "in good health", "what's good", "how do things stand", "how is it with you", "do you feel well", "having a good day", "had a good day", "how's your morning"]
STATE_TAILS = ["", "", "", "", "", " today", " now", " these days", " this morning", " tonight", " this evening", ", Demo", ", friend", ", bot", " then", " so far", " my friend", " at the moment", ", buddy", " lately", " over there", " in there"]

YES_NO = ["ok", "okay", "yes", "no", "yes", "no", "all right", "alright", "fine", "sure", "sure thing", "yep", "yup", "yeah", "nope", "nah", "aye", "k", "kk", "okey", "okey dokey", "right", "understood", "noted", "got it", "I got it", "I see",
          "I understand", "makes sense", "that makes sense", "fair enough", "good to know", "as you like", "as you wish", "never mind", "not now", "not yet", "maybe", "maybe later", "perhaps", "later", "wait", "wait a moment", "one moment", "one second",
          "a moment please", "hold on", "let me think", "let me see", "let me try", "I will try", "I'll try that", "I will think about it", "roger", "copy that", "agreed", "I agree", "true", "exactly", "of course", "indeed", "absolutely", "definitely",
          "certainly", "naturally", "not really", "no problem", "no worries", "that's ok", "that is fine", "that is okay", "it is fine", "it does not matter", "doesn't matter", "don't worry", "ah ok", "oh ok", "oh I see", "ah I see", "hm ok", "well ok",
          "uh huh", "I know", "I think so", "I guess so", "I hope so", "I don't think so", "so be it", "very well", "deal", "done", "go on", "go ahead", "carry on", "just a test", "only a test", "I am only testing", "testing", "this is only a test"]
YES_NO_TAILS = ["", "", "", "", "", " then", " so", ", fine", " please", ", sure", ", good", " sir", ", let's go", " of course", ", no problem", ", got it", ", ok", " boss"]


def stretched(rng, text):
    """Now and then a letter typed too often or left out, as people do."""
    if rng.random() < 0.07:
        at = [i for i, letter in enumerate(text) if letter in "aeiouyhsk"]
        if at:
            i = rng.choice(at[-3:])
            return text[:i] + text[i] * rng.randint(2, 4) + text[i + 1:]
    if rng.random() < 0.05 and len(text) > 6:
        i = rng.randint(2, len(text) - 2)
        return text[:i] + text[i + 1:] if rng.random() < 0.5 else text[:i] + text[i + 1] + text[i] + text[i + 2:]
    return text


def greeting(rng):
    c = rng.choice
    if rng.random() < 0.18:
        return c(["", "", "", "hi, ", "hello, ", "hey, ", "so, "]) + c(PRESENCE) + c(["", "?", "?", ".", "!"])
    whom = W.any_name(rng) if rng.random() < 0.05 else c(WHOM)
    return f"{c(HELLO)}{c([' ', ' ', ', ']) if whom else ''}{whom}{c(HELLO_TAILS)}"


def thanks(rng):
    c = rng.choice
    kind = rng.random()
    if kind < 0.5:
        whom = c(WHOM)
        return c(THANKS) + c(FOR_WHAT) + (f", {whom}" if whom and whom != "again" and rng.random() < 0.4 else "")
    if kind < 0.8:
        return c(PRAISED).format(p=c(PRAISE))
    return c(["", "", "", "oh, ", "wow, ", "yes, ", "great, "]) + c(WORKED)


def bye(rng):
    c = rng.choice
    return c(["", "", "", "", "ok, ", "well, ", "thanks, ", "so, ", "alright, "]) + c(BYE) + c(BYE_TAILS)


def state(rng):
    c = rng.choice
    return c(["", "", "", "", "hi, ", "hello, ", "hey, ", "hello! ", "so, ", "and ", "good morning, ", "well, ", "hi there, "]) + c(STATE) + c(STATE_TAILS) + c(["?", "?", "?", ""])


def yes_no(rng):
    c = rng.choice
    return f"{c(YES_NO)}{c(YES_NO_TAILS)}"


TALKS = {"Hello! Give me": greeting, "You are welcome": thanks, "Goodbye!": bye, "I am well": state, "All right.": yes_no}


def small_talk(rng, answer):
    """Words that `answer` answers."""
    text = stretched(rng, next(make for start, make in TALKS.items() if answer.startswith(start))(rng))
    if text[-1] not in ".?!":
        text += rng.choice(FACES)
    return text[0].upper() + text[1:] if rng.random() < 0.5 else text


LANGUAGES = "French German Spanish Italian Latin Dutch Russian Chinese Japanese Polish Greek Turkish Danish Welsh Arabic Hindi".split()
SOUNDS = """ouch|oops|ooops|yikes|gosh|gee|phew|ugh|ew|eww|argh|aargh|grr|brr|huh|hmm|hmmm|um|umm|uh|er|erm|ah|aha|ahh|oh|ooh|ohh|boo|bah|pff|pfft|psst|shh|tsk|tut|uh oh|oh no|oh dear|oh my|oh boy|good grief|my goodness|goodness me|heavens|
blimey|crikey|dang|darn|damn|shoot|rats|bummer|alas|whoa|woah|whoops|eek|meow|woof|moo|quack|beep|boop|ding|bang|boom|splash|zap|tick tock|la la la|blah|blah blah|yada yada|ha|hehe|hihi|heh|rofl|lmfao|xd|idk|idc|imo|fyi|smh|tbh|btw|afk|asap|
gg|wp|nvm|omw|irl|ftw|yolo|bruh|bro|sis|fam|dude|man|girl|boss|chief|captain|duh|meh|nom|yawn|sigh|cough|achoo|hic|snore|zzzz|hiss|roar|tada|voila|abracadabra|hocus pocus|bingo|eureka|checkmate|cowabunga|geronimo|
why|who|what|when|where|how|which|whose|why not|so what|and then|and now|what now|now what|then what|what else|who else|how come|says who|since when|what for|if only|as if|even so|or else|for sure|for real|no way|seriously|
really|honestly|literally|basically|obviously|somehow|anyway|anyhow|anyways|besides|however|therefore|moreover|because|although|unless|until|despite|instead|otherwise|almost|barely|hardly|never|always|sometimes|often|soon|once|twice|
something|anything|everything|everywhere|somewhere|nowhere|somebody|nobody|nothing much|not much|so much|too much|too bad|so sad|how sad|what a mess|what a shame|what a pity|what a joke|what the heck|what on earth|who cares|who knows|
beats me|no idea|no clue|not sure|I guess|I dunno|dunno|I forgot|I give up|I am lost|I am stuck|leave me alone|stop it|stop|halt|quiet|silence|enough|hurry|faster|slower|louder|again and again|more|less|back|forward|left|right now|up|down|
finish|pause|abort|escape|enter|return|space|shift|control|login|password|username|admin|root|guest|user|null|none|nil|undefined|void|true or false|yes or no""".replace("\n", "").split("|")
MENTIONS = ['say "{t}"', 'print("{t}")', 'translate "{t}"', 'what does "{t}" mean?', 'spell "{t}"', "how do you say {t} in {l}?", "translate {t} into {l}", "{t} in {l}", "write {t} on a card", "how do I reply to {t}?", 'what rhymes with "{t}"?', "echo {t}", 'console.log("{t}")',
            "who says {t}?", "why do people say {t}?", 'repeat after me: "{t}"', "is {t} polite?", 'she said "{t}" to me', "tell {w} {t} from me", 'write a poem called "{t}"', 'puts "{t}"', "what is {l} for {t}?", 'a song named "{t}"', "count the letters of {t}", 'println!("{t}");',
            "he never says {t}", "how to say {t} politely", 'say "{t}" in {l}', '"{t}" backwards', "{t} is a strange phrase", 'shout "{t}" three times', "sing {t}", "who said {t} first?", "when do I say {t}?", "send {t} to {w}", "write {t} to my {n}", 'const text = "{t}";', 'return "{t}"']
TO_WHOM = ["I {v} you", "I {v} him", "I {v} her", "I {v} them", "do you {v} me?", "you {v} me", "we {v} you", "{w} {v} you", "I {v} {w}", "I {v} your {n}", "I {v} my {n}", "nobody {v} me", "why do I {v} you?", "I do not {v} you", "don't {v} me", "I will {v} you", "I could {v} you", "they {v} us"]
TOWARDS = "love hate like miss need want know trust believe hear see follow fear kiss hug marry fight forgive envy adore dislike blame pity serve watch admire respect ignore remember understand call visit feel".split()
FEEL = ["I feel", "I'm feeling", "feeling", "I am", "I'm", "so", "today I am", "I was", "we are", "he is", "she is", "everybody is", "it makes me", "you make me", "I got", "I have never been so", "still", "a bit", "kind of", "totally"]
MOODS = """bored tired sad lonely hungry thirsty sleepy angry cold hot sick ill nervous scared worried stressed excited proud jealous confused curious broke drunk hurt homesick anxious grumpy cheerful calm furious annoyed amused
disappointed heartbroken exhausted restless lazy busy late early drowsy dizzy moody gloomy blue hopeful helpless clumsy awkward shy brave alone""".split()
REMARKS = ["it is {m} here", "what a {m} {n}", "my {n} is {m}", "my {n} hurts", "I lost my {n}", "I miss my {n}", "I like {n}s", "I love my {n}", "I hate {n}s", "I want a {n}", "where is my {n}", "look, a {n}", "a {n}!", "{n}", "{n}s", "the {n}", "my {n}",
           "no {n} today", "too many {n}s", "nice {n}", "bad {n}", "{n} time", "{n} please", "one {n}, please", "the {n} again", "{n} or {n2}", "{n} and {n2}", "not the {n}", "this {n}", "just a {n}", "any {n}s around?", "all the {n}s", "so many {n}s", "hello {n}s of {n2}",
           "I had a {m} {n}", "my {n} died", "my {n} is here", "the {n} is coming", "it was a {n}", "I saw a {n}", "I need my {n}", "you sound like a {n}", "you look like a {n}", "are there {n}s?", "is there a {n}?", "got a {n}?", "seen my {n}?", "what a {n}!"]
MARKED = "🙂 😀 😂 😢 👍 👎 ❤️ 🎉 🤔 😡 🙏 👋 😴 🔥 ✅ ❌ :D :P :-P xD <3 :/ :| o_O ^^ -.- >:( :'( (: ): ... .. . , ; ! !! !!! ?? ??? ?! - -- _ # @ & % $ ~ ` \" ' / \\ | [] {} <> = ==".split()


def mention(rng):
    """A request that only mentions small talk, and what is said of oneself and others."""
    c = rng.choice
    if rng.random() < 0.35:
        return c(TO_WHOM).format(v=c(TOWARDS), w=W.any_name(rng), n=c(W.NOUNS)) + c(["", "", ".", "!"])
    said = c([HELLO, THANKS, BYE, STATE, YES_NO, PRAISE, WORKED])
    return c(MENTIONS).format(t=c(said), l=c(LANGUAGES), w=W.any_name(rng), n=c(W.NOUNS))


def word_start(rng):
    """The beginning of a word of small talk."""
    word = rng.choice(" ".join(rng.choice([HELLO, THANKS, BYE, PRAISE, YES_NO])).replace(",", "").split())
    return word[:rng.randint(1, max(1, len(word) - 2))]


def fragment(rng):
    """A few letters, a word or two, a sound, a mood: nothing that asks for one of the tasks."""
    c = rng.choice
    word = lambda: c(Repository.load().vocabulary) if rng.random() < 0.5 else any_word(rng)
    kind = rng.random()
    if kind < 0.22:
        text = c(SOUNDS)
        text = f"{text}{c([', ', ' ', '... '])}{c(SOUNDS)}" if rng.random() < 0.15 else f"{text} {word()}" if rng.random() < 0.1 else text
    elif kind < 0.36:
        text = word()
    elif kind < 0.46:
        text = f"{word()} {word()}"
    elif kind < 0.56:      # the beginning of a word, or a word with other letters
        text = word()
        text = word_start(rng) if rng.random() < 0.4 else text[:rng.randint(1, 4)] if rng.random() < 0.5 else c("bcdfghklmnprstvwyz") + text[1:]
    elif kind < 0.64:
        text = W.made_up_word(rng, 1, 3)
    elif kind < 0.76:
        text = f"{c(FEEL)} {c(MOODS + W.ADJECTIVES)}" + c(["", "", "", " today", " now", " again", " about my " + c(W.NOUNS), " and " + c(MOODS)])
    elif kind < 0.92:
        text = c(REMARKS).format(m=c(MOODS + W.ADJECTIVES), n=c(W.NOUNS) if rng.random() < 0.6 else word(), n2=word())
    elif kind < 0.95:
        return c(MARKED)
    else:
        text = "".join(c("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(1, 5)))
    text += c(["", "", "", "", "!", "?", ".", "...", "?!", "!!"])
    return text[0].upper() + text[1:] if rng.random() < 0.35 else text
