"""Questions for what the user told earlier, put together from a way to ask and a way to name the fact."""

# Kind of fact: (names of it, clauses for it). Both fit where the other question words of this file leave a gap.
RELATIVES = ["dog", "cat", "friend", "sister", "brother"]
NAMED = {
    "my name": (["my name"], ["what my name is", "what my name was", "who I am", "what I am called", "what I'm called", "how I am called", "what you should call me", "which name I told you", "what name I gave you", "under which name you know me"]),
    "my number": (["my number", "the number", "the number I told you", "the number I gave you", "that number", "the number from before", "the number I had you keep"],
                  ["what my number is", "which number I gave you", "what number I told you", "what the number was", "which number you should keep", "which number I named", "what number it was", "which number I said"]),
    "my code": (["my code", "the code", "the code I gave you", "that code", "my secret code", "the code from before"], ["what my code is", "which code I gave you", "what code I told you", "what the code was", "which code is mine", "what my code was"]),
    "my city": (["my city", "my home city", "my home town", "the city I live in", "the name of my city"], ["where I live", "where I am from", "where I come from", "which city I live in", "in which city I live", "where my home is", "what my city is", "which city is mine"]),
    "my colour": (["my favourite colour", "my favorite color", "the colour I like best", "the colour I love", "my preferred colour"],
                  ["which colour I like best", "what colour I like", "which colour is my favourite", "what my favourite colour is", "which color I prefer", "what my favorite color was"]),
    "my age": (["my age"], ["how old I am", "what age I am", "what my age is", "how old I said I am", "how many years old I am", "what age I told you"]),
    "my room": (["my room number", "my room", "the number of my room"], ["which room I am in", "in which room I am", "what my room number is", "what room is mine", "what number my room has", "what my room was"]),
    "my pin": (["my pin", "the pin", "the pin I gave you", "that pin"], ["what my pin is", "which pin I told you", "what the pin was", "which pin is mine", "what pin I gave you"]),
}
for relative in RELATIVES:
    NAMED["my " + relative] = ([f"my {relative}'s name", f"the name of my {relative}", f"what I call my {relative}"],
                               [f"what my {relative} is called", f"what my {relative}'s name is", f"how my {relative} is called", f"what name my {relative} has", f"which name my {relative} has", f"what my {relative}'s name was",
                                f"what the name of my {relative} is"])

POLITE = ["can you", "could you", "would you", "will you", "can you please", "could you please", "would you please", "could you kindly", "are you able to", "I want you to", "I would like you to", "I need you to", "please", "kindly", "now", "go ahead and", "try to",
          "you should", "you can", "be so kind and", "would it be possible to", "is it possible to", "can I ask you to", "may I ask you to", "let me ask you to", "I'd ask you to", "I must ask you to", "it is time to"]
ASKS = set("can could would will are is may".split())
VERBS = ["tell me", "give me", "say", "repeat", "name", "recall", "remember", "show me", "state", "write", "print", "mention", "bring up", "look up", "call up", "read me", "spell out", "let me have", "let me see", "let me hear", "send me", "type", "report",
         "fetch", "find", "remind me of", "jog my memory about", "refresh my memory on", "hand me", "get me", "dig up", "quote", "list", "put down", "confirm", "think of", "go back to"]
CLAUSE_VERBS = ["tell me", "say", "repeat", "remember", "recall", "remind me", "show me", "let me know", "write", "state", "explain to me", "inform me", "think back to", "confirm", "work out from before", "look up", "help me remember", "help me recall", "remind me of"]
KNOW = ["do you know", "do you remember", "do you recall", "do you still know", "do you still remember", "do you also remember", "can you remember", "can you recall", "could you recall", "have you kept", "did you note", "did you keep in mind", "have you noted",
        "did you write down", "did I tell you", "did I say", "have I told you", "have I said", "do you have any memory of", "are you sure you know", "would you know", "will you remember", "have you forgotten", "did you forget"]
WISH = ["I want to know", "I would like to know", "I'd love to know", "I need to know", "I have to know", "I wish to hear", "I wonder", "I am asking", "I forgot", "I have forgotten", "I cannot recall", "I can't remember", "I do not remember", "I no longer know",
        "I am not sure", "I lost track of", "I want to hear", "I am curious", "I have no idea", "I should like to know", "it slipped my mind", "I don't know any more", "I must know", "I need to check", "let us see if you know", "let's see if you remember",
        "the question is", "here is a question:", "my question:", "quiz:", "a test:", "tell me this:", "test of your memory:"]
LATER = ["", "", "", "", "again", "once more", "one more time", "now", "please", "once again", "for me", "then", "a second time", "from earlier", "right away", "if you can", "quickly", "exactly", "from memory", "if you remember", "here"]
BEFORE = ["", "", "", "", "", "so", "and", "now", "ok,", "well,", "hey,", "hm,", "oh,", "sorry,", "one thing:", "wait,", "by the way,", "back to me:", "earlier I told you something:", "I told you before:", "another question:", "after all that,", "before I forget:"]
PLAIN = ["what is {n}", "what was {n} again", "what is {n} again", "{n}", "{n} again", "{n} please", "{n} is what", "{n} was what", "and {n}", "what about {n}", "how about {n}", "what again is {n}", "what did I say is {n}", "what did I tell you about {n}",
         "what exactly is {n}", "what would be {n}", "what do you have as {n}", "what do you know about {n}", "do you have {n}", "do you know {n}", "is {n} known to you", "what have you noted as {n}", "what did you keep as {n}", "{n}, do you know it",
         "{n}: what was it", "{n}, what is it", "I need {n}", "I want {n} back", "I lost {n}", "I am looking for {n}", "I asked you to keep {n}. What is it", "which one is {n}", "how does {n} go", "how do you spell {n}", "what might {n} be", "I told you {n}. What was it",
         "you know {n}, right? Say it", "you heard {n}. Which is it", "did you get {n}", "did you keep {n}", "do you still have {n}", "which was {n} again", "you were told {n}. What is it"]


def ask_for(rng, kind):
    """A question for the fact of this kind, with or without a mark at its end."""
    c = rng.choice
    names, clauses = NAMED[kind]
    form = rng.random()
    if form < 0.3:
        text, question = c(PLAIN).format(n=c(names)), True
    elif form < 0.5:
        lead = c(POLITE + [""] * 12)
        text, question = f"{lead} {c(VERBS)} {c(names)} {c(LATER)}", lead.split(" ")[0] in ASKS
    elif form < 0.72:
        lead = c(POLITE + [""] * 10)
        text, question = f"{lead} {c(CLAUSE_VERBS)} {c(clauses)} {c(LATER)}", lead.split(" ")[0] in ASKS
    elif form < 0.88:
        text, question = f"{c(KNOW)} {c(clauses + names)} {c(LATER[:8])}", True
    else:
        text, question = f"{c(WISH)} {c(clauses)}", rng.random() < 0.3
    text = " ".join(f"{c(BEFORE)} {text}".split())
    text += c(["?", "?", "?", ""]) if question else c([".", ".", "", "!", "?"])
    return text[0].upper() + text[1:] if rng.random() < 0.7 else text
