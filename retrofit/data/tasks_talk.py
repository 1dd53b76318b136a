"""Short talk about the model, its tasks and dmschat's commands, and the answer to anything else."""
import data.words as W
from data.offtopic import ABOUT_US, off_topic_request
from data.small_talk import BYE, HELLO, PRAISE, PRESENCE, STATE, THANKS, WORKED, YES_NO, fragment, mention, small_talk
from data.texts import any_word, make_text
from data.turn import Turn, shape_of_line

LARGER = "dmschat --model nvidia/Qwen3-8B-DMS-8x"
OFF_TOPIC_ANSWER = ("That is beyond me: I calculate with whole numbers of a few digits, solve linear equations, sort numbers, follow variables, "
                    f"find a number in a text and remember what you tell me. For more, load a larger model: {LARGER}")
OFF_TOPIC_THINK = "This is not one of my tasks."

ABOUT = {   # answer: questions; every fifth question is kept out of training
    "I am Demo, the small language model built into dmschat. I drop parts of my cache as I go, which the panel shows.": [
        "Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "What is your name?",
        "What's your name?", "Are you an AI?", "What model are you?", "Which model is this?", "Who am I talking to?",
        "Are you ChatGPT?", "Are you a person?", "Describe yourself.", "Say something about yourself.", "What kind of model are you?",
        "What are you called?", "Who is this?", "Are you a robot?", "Are you human?", "who are you", "Do you have a name?",
        "Which AI are you?", "What is Demo?", "Are you a language model?", "What am I talking to?"],
    "I calculate with whole numbers, solve linear equations, sort numbers, follow variables, find a number hidden in a text, search by trying and remember names and numbers.": [
        "What can you do?", "What are you good at?", "How can you help me?", "What are your tasks?", "What do you know?",
        "help", "Help", "Help me", "What should I ask you?", "What can I ask you?", "Which tasks can you do?",
        "What are your skills?", "What can you help me with?", "Give me examples of what you can do.", "What do you do?",
        "Tell me what you can do.", "What are you able to do?", "List your skills.", "what can you do", "How do I use you?",
        "What is possible here?", "What questions can I ask?", "Show me what you can do.", "What can you solve?", "What are you for?"],
    "I have about 8 million parameters: 8 layers with 8 query heads and 4 KV heads each.": [
        "How big are you?", "How many parameters do you have?", "How large are you?", "What is your size?", "How many layers do you have?",
        "How many heads do you have?", "What is your architecture?", "Tell me your size.", "Are you a large model?", "How small are you?"],
    "I was trained from scratch on problems made by a program, then taught to evict with DMS on one H200.": [
        "How were you trained?", "Who trained you?", "Who made you?", "What were you trained on?", "Where do you come from?",
        "Who created you?", "What is your training data?", "How were you made?", "Who built you?", "Who is your maker?"],
    "DMS is learned KV cache eviction: every head decides which tokens to drop once they leave a window of 64 tokens.": [
        "What is DMS?", "How does DMS work?", "Explain DMS.", "What does DMS mean?", "What is KV cache eviction?",
        "What is eviction?", "How does eviction work?", "What do you evict?", "What is dynamic memory sparsification?", "Why do you drop tokens?",
        "What is the KV cache?", "What does the panel show?", "What is the heatmap?", "What is the window?", "What is a cache?"],
    "The ratio says how many times smaller the cache is than a dense one that keeps every token.": [
        "What is the ratio?", "What does the ratio mean?", "What is the compression ratio?", "How is the ratio counted?", "Explain the ratio."],
    "My context holds 8,192 tokens.": [
        "How long is your context?", "What is your context length?", "How many tokens can you read?", "How much can you read?", "What is your context window?"],
    "I speak English only, and no other language.": [
        "Which languages do you speak?", "Do you speak German?", "Do you speak French?", "What languages do you know?", "Can you speak Spanish?"],
    "dmschat is a chat for the terminal that runs models with learned cache eviction and shows their cache live.": [
        "What is dmschat?", "What is this program?", "Tell me about dmschat.", "What does dmschat do?", "Explain dmschat.",
        "What is this?", "Where am I?", "What program is this?", "What app is this?", "What is this chat?"],
    "Start dmschat with another model, for example dmschat --model nvidia/Qwen3-8B-DMS-8x, or use /model in the chat.": [
        "How do I load another model?", "How do I load a larger model?", "Can I use another model?", "How do I change the model?", "How can I use Qwen3?",
        "How do I switch models?", "Can I load a bigger model?", "How do I run Qwen3-8B?", "Which models can I load?", "How do I get a better model?"],
}

COMMANDS = {   # command: (what it does, things a user may want)
    "/help": ("/help lists the commands and keys.", ["see all commands", "see the keys", "get help"]),
    "/new": ("/new starts a new conversation with an empty cache.", ["start over", "start a new conversation", "clear the chat"]),
    "/model": ("/model shows or changes the model.", ["choose another model", "see the model", "change the model here"]),
    "/eviction": ("/eviction on or off switches cache eviction from now on.",
                  ["switch eviction off", "switch eviction on", "turn off eviction", "turn on eviction", "stop dropping tokens"]),
    "/rebuild": ("/rebuild fills the cache again from the first token under the present eviction state.",
                 ["rebuild the cache", "fill the cache again", "bring back dropped tokens"]),
    "/think": ("/think on or off switches my reasoning on or off.",
               ["switch thinking off", "switch thinking on", "turn off thinking", "turn on thinking", "stop the reasoning"]),
    "/keep-thinking": ("/keep-thinking on or off says whether earlier reasoning stays in the context.",
                       ["keep the reasoning", "keep earlier thinking", "drop earlier thinking"]),
    "/set": ("/set NAME VALUE changes a setting such as temperature.",
             ["change the temperature", "change a setting", "set the seed", "change the sampling"]),
    "/system": ("/system TEXT sets the system prompt.", ["set the system prompt", "change the system prompt", "give you a role"]),
    "/regen": ("/regen answers the last message again.", ["get another answer", "regenerate the answer", "try again"]),
    "/edit": ("/edit changes your last message and answers it anew.", ["edit my message", "change my last message", "correct my question"]),
    "/undo": ("/undo takes back the last turn.", ["undo the last turn", "take back my message", "remove the last turn"]),
    "/copy": ("/copy copies an answer or a code block.", ["copy the answer", "copy the code", "copy your reply"]),
    "/panel": ("/panel shows or hides the cache panel.", ["hide the panel", "show the panel", "see the cache"]),
    "/stats": ("/stats prints the numbers of the cache and the speed.", ["see the statistics", "see the numbers", "see the speed"]),
    "/save": ("/save FILE writes the conversation with its cache statistics.", ["save the chat", "save this conversation", "keep a copy of this chat"]),
    "/export": ("/export FILE writes the conversation as Markdown or JSONL.", ["export the chat", "get a markdown file", "export to a file"]),
    "/sessions": ("/sessions lists the saved conversations.", ["see old chats", "list the sessions", "find an earlier conversation"]),
    "/resume": ("/resume opens a saved conversation.", ["continue an old chat", "resume a session", "open a saved conversation"]),
    "/rename": ("/rename gives the conversation a new name.", ["rename the chat", "rename this session", "name this conversation"]),
    "/delete": ("/delete removes a saved conversation.", ["delete a chat", "remove a session", "delete a saved conversation"]),
    "/theme": ("/theme NAME changes the colours.", ["change the colours", "change the theme", "use a light theme", "use a dark theme"]),
    "/quit": ("/quit leaves dmschat.", ["leave", "quit", "exit the program", "close dmschat"]),
}
COMMAND_QUESTIONS = ["What does {c} do?", "What is {c}?", "Explain {c}.", "How does {c} work?", "Tell me about {c}.",
                     "What is {c} for?", "What happens with {c}?", "{c}?", "Describe {c}.", "When do I use {c}?",
                     "what does {c} do", "What is the command {c}?", "How do I use {c}?", "Why is there {c}?", "What does the command {c} do?"]
MORE_COMMAND_QUESTIONS = ["What can I do with {c}?", "{c} means what?", "What does {c} mean?", "Tell me what {c} does.", "I do not know {c}.",
                          "What is the use of {c}?", "What will {c} do?", "Can you explain {c}?", "Please explain {c}.", "Explain the command {c}.",
                          "what is {c}", "explain {c}", "Help with {c}", "When should I use {c}?", "Where do I use {c}?", "Should I use {c}?",
                          "What is the meaning of {c}?", "Is {c} a command?", "Do I need {c}?", "How to use {c}?", "What about {c}?", "help {c}"]
MORE_WANT_QUESTIONS = ["What must I type to {w}?", "Tell me how to {w}.", "How does one {w}?", "I need to {w}.", "I would like to {w}.", "How do you {w}?",
                       "Which command lets me {w}?", "Is it possible to {w}?", "What do I do to {w}?", "How could I {w}?", "Show me how to {w}.",
                       "Where can I {w}?", "Let me {w}.", "What command is there to {w}?", "How do I {w} here?", "How can one {w} in dmschat?",
                       "Which command should I use to {w}?", "What should I enter to {w}?", "I want to know how to {w}.", "Can you {w}?"]
WANT_QUESTIONS = ["How do I {w}?", "How can I {w}?", "I want to {w}.", "Which command do I need to {w}?", "What do I type to {w}?",
                  "Is there a command to {w}?", "how to {w}", "Can I {w}?", "Please tell me how to {w}.", "What is the command to {w}?"]

NOUNS_OF = {   # words for a topic of ABOUT, found by how its answer begins: they go into NOUN_QUESTIONS
    "I am Demo": ["yourself", "you", "Demo", "this model", "the built-in model", "this AI", "this bot", "the demo model", "the small model"],
    "DMS is": ["DMS", "KV cache eviction", "cache eviction", "eviction", "dynamic memory sparsification", "the KV cache", "the cache",
               "the window", "the heatmap", "learned eviction", "a KV cache", "the eviction rule", "dropping tokens", "an evicted token", "DMS eviction"],
    "The ratio": ["the ratio", "the compression ratio", "compression", "the cache ratio", "the number with the x", "8x", "this ratio"],
    "My context": ["your context", "the context length", "the context window", "your context window", "your memory size", "the token limit", "the context"],
    "dmschat is": ["dmschat", "this program", "this chat", "this app", "this terminal chat", "this tool", "the program"],
    "I was trained": ["your training", "your training data", "your origin", "your maker", "your author", "how you were trained"],
    "I have about": ["your size", "your architecture", "your parameters", "your layers", "your heads", "the number of your parameters"],
    "I calculate": ["your skills", "your tasks", "your abilities", "your talents", "the things you can do", "your purpose"],
    "Start dmschat": ["loading a larger model", "loading another model", "changing the model", "running Qwen3", "using a bigger model", "switching models"],
}
NOUN_QUESTIONS = ["What is {n}?", "Explain {n}.", "Tell me about {n}.", "Describe {n}.", "What can you say about {n}?", "Can you explain {n}?",
                  "I want to know about {n}.", "What about {n}?", "{n}?", "Tell me something about {n}.", "Could you describe {n}?", "explain {n}",
                  "Give me information on {n}.", "Say something about {n}.", "What do you know about {n}?", "I have a question about {n}.",
                  "Please explain {n}.", "How would you explain {n}?", "Help me understand {n}.", "what is {n}", "Inform me about {n}.",
                  "Talk about {n}.", "Let us talk about {n}.", "I do not understand {n}.", "What should I know about {n}?"]
MORE_QUESTIONS = {   # further questions, all for training
    "I am Demo": ["So who are you?", "What is your name, please?", "Tell me your name.", "May I know your name?", "What should I call you?",
                  "Are you GPT?", "Are you Claude?", "Are you Qwen?", "Are you Llama?", "Are you a machine?", "Are you a program?", "Are you a bot?",
                  "Are you real?", "Are you a chatbot?", "Is this ChatGPT?", "What's this model?", "Which model are you?", "Who is there?",
                  "With whom am I speaking?", "Am I talking to an AI?", "Am I talking to a human?", "You are who?", "Please introduce yourself.",
                  "Can you introduce yourself?", "Are you a neural network?", "What sort of AI are you?", "Are you artificial?", "What is this model called?"],
    "I calculate": ["What tasks do you know?", "What kind of tasks can you do?", "What kind of questions can I ask?", "Can you help me?", "I need help.",
                "help me please", "Is there anything you can do?", "What do you offer?", "Show me your skills.", "What are you trained to do?",
                "What can I do here?", "What can you compute?", "What else can you do?", "Give me an example.", "Which problems can you solve?",
                "What should I try?", "Suggest something to try.", "How should I use you?", "What can I try?", "Tell me your skills.", "what do you do",
                "What problems do you solve?", "Can you do math?", "Can you do maths?", "Can you calculate?", "Can you solve equations?",
                "Can you sort numbers?", "Can you remember things?", "Can you search?", "Can you factor numbers?", "Can you play countdown?", "Can you find a path?", "Can you try things?", "What are your abilities?", "List your tasks.", "What is this good for?"],
    "I have about": ["How many parameters?", "How many parameters are in you?", "What is your parameter count?", "How big is this model?", "How large is the model?",
                     "How many layers are there?", "How many heads are there?", "How many KV heads do you have?", "Are you big?", "Are you small?",
                     "How many weights do you have?", "What is the size of the model?", "How deep are you?", "How big is your network?"],
    "I was trained": ["Who is your creator?", "Who wrote you?", "Who developed you?", "Where were you trained?", "How did you learn?", "What data were you trained on?",
                      "When were you trained?", "How long were you trained?", "What did you learn from?", "Who is behind you?", "How are you made?",
                      "Were you trained from scratch?", "On what were you trained?", "Which data did you see?"],
    "DMS is": ["How do you forget?", "How do you drop tokens?", "What happens to old tokens?", "Which tokens are dropped?", "Why is the cache small?",
               "How does the cache work?", "Why do you forget tokens?", "How does the heatmap work?", "What do the colours in the panel mean?", "Why are tokens evicted?",
               "How does learned eviction work?", "What does eviction do?", "What does KV cache mean?", "What does the heatmap show?", "How is the cache kept small?",
               "What is the panel showing?", "How big is the window?", "Which tokens do you keep?", "When are tokens dropped?", "What does W mean?"],
    "The ratio": ["How high is the ratio?", "What is this ratio?", "Why does the ratio change?", "Why is the ratio rising?", "What does 8x mean?", "What does 5x mean?",
                  "How do I read the ratio?", "What is a good ratio?"],
    "My context": ["How many tokens fit?", "How long can our chat be?", "How long may my text be?", "How much text can you read?", "What is the maximum length?",
                   "How large is the context?", "How many words can you read?", "How long can a text be?", "When is the context full?"],
    "I speak": ["Do you speak Italian?", "Do you understand German?", "Can you speak French?", "Do you speak English?", "Do you understand Chinese?", "Do you know Russian?",
                "Which language do you speak?", "Can you understand Japanese?", "What is your language?", "Can I write in German?", "Can I ask in Spanish?",
                "Do you only speak English?", "What languages can you speak?", "Are you able to speak Dutch?"],
    "dmschat is": ["What is this tool?", "What does this program do?", "What is dmschat for?", "Why is it called dmschat?", "What is the purpose of dmschat?",
                   "What is this app?", "Which program is this?", "What software is this?", "What is dmschat good for?"],
    "Start dmschat": ["How do I get a larger model?", "How can I load another model?", "How do I use a bigger model?", "I want a better model.", "I need a larger model.",
                      "Load a larger model.", "How to load another model?", "How can I change the model?", "How do I use Qwen3?", "How can I run Qwen3-8B?",
                      "Is there a bigger model?", "Can I load Llama?", "How do I load my own model?", "Which other models are there?", "Can I use a different model?",
                      "What other models can I use?", "Where do I get a larger model?", "How do I start dmschat with another model?"],
}

SMALL_TALK = {
    "Hello! Give me an equation, a list of numbers, a program or a text with a hidden number.": [
        "Hi", "Hello", "Hey", "Hello!", "Good day", "Hi!", "Good morning", "hi there", "hello there", "Good evening",
        "Hey there", "hi", "hello", "Greetings", "Hey!", "Hi there!", "heya", "howdy", "hi all", "hello friend", "hey you", "hi, nice to meet you", "morning", "hallo", "hullo", "hi hi", "Hi, I am new here", "hello world", "hey, anybody home?", "Good morning!", "hey bot", "hello computer", "hiii", "heyyy", "hello hello", "hi everyone", "good day to you", "hi Demo!", "hey, how is everybody", "hello, is anyone here?", "hi, anybody?", "greetings, machine", "Well hello", "oh hi", "hello again", "hi again", "hi, it is me", "evening", "aloha", "heyo", "Good afternoon", "Hello there!", "hey", "Hello, Demo"],
    "You are welcome.": ["Thanks", "Thank you", "Thank you!", "thanks", "Thanks a lot", "Thanks!", "Thank you very much.",
                         "Great, thanks", "thank you", "Many thanks", "Well done", "Good job", "Nice", "Great", "Good work",
                         "Very good", "Good", "Perfect", "Wow", "Cool", "ty", "tysm", "Much appreciated", "thanks, that helps", "great work", "awesome", "nice one", "thank you, Demo", "impressive", "amazing", "thank you so very much", "thanks so much", "thanks!!", "thanks for that", "Thank you for your help.", "thanks a million", "great thanks", "ok thanks", "ok thank you", "thank u", "thnx", "cheers mate", "that was helpful", "you are great", "fantastic", "super", "Brilliant!", "well done!"],
    "Goodbye! Type /quit to leave.": ["Bye", "Goodbye", "bye", "See you", "Bye bye", "Bye!", "Goodbye!", "See you later", "Good night", "Farewell", "take care", "bye for now", "I have to go", "see you tomorrow", "cu", "until later", "so long", "see you around", "see you soon", "bye then", "I am leaving", "good bye", "gotta go", "catch you later", "that is all, bye", "ok bye", "have a nice day"],
    "I am well, thank you. Give me something to work out.": [
        "How are you?", "How do you do?", "How is it going?", "how are you", "How are you today?", "Are you well?", "How do you feel?",
        "What's up?", "Are you ok?", "How's it going?", "how are things?", "how are you feeling?", "are you fine?", "how do you do today?", "how was your day?", "how have you been?", "you ok?", "what's new with you?", "how do you do", "how are you this morning?", "How are you, Demo?", "how are you feeling today?", "hi, how are you?", "hello, how are you doing?", "everything ok?", "how goes it?", "how is life treating you?", "how is your day?", "are you doing well?", "how's your day going?", "all good?"],
    "All right.": ["ok", "OK", "Okay", "Yes", "No", "yes", "no", "All right", "Fine", "Sure", "yep", "nope", "k", "alright", "got it", "I see", "just testing", "this is a test"],
}


def pick(rng, questions, held_out):
    """A question of the list; every fifth is kept out of training."""
    if held_out:
        return rng.choice(questions[4::5])
    kept = [q for i, q in enumerate(questions) if i % 5 != 4]
    return rng.choice(kept)


def about_question(rng, answer, held_out):
    """A question that `answer` answers: from its list, or one of its words in a general question."""
    start = next((k for k in MORE_QUESTIONS if answer.startswith(k)), None)
    nouns = NOUNS_OF.get(start)
    kind = rng.random()
    if nouns and kind < (0.5 if held_out else 0.35):
        text = pick(rng, NOUN_QUESTIONS, held_out).format(n=rng.choice(nouns))
        return text[0].upper() + text[1:]
    if not held_out and kind < 0.65:
        return rng.choice(MORE_QUESTIONS[start])
    return pick(rng, ABOUT[answer], held_out)


def vary(rng, text):
    """Small changes of spelling a user makes: case, a missing mark, a polite word."""
    if rng.random() < 0.12:
        text = text.lower()
    elif rng.random() < 0.04:
        text = text.upper()
    if rng.random() < 0.12:
        text = text.rstrip(".?!")
    if rng.random() < 0.12:
        text = rng.choice(["Please: ", "Hey, ", "Ok, ", "So, ", "Hi! ", "Well, ", "And ", "Now: ", "Next: ", "Question: ", "Thanks. ", "Hello! ",
                           "Tell me: ", "Hm, ", "Good. ", "One question: ", "I am new. ", "I'm a beginner, ", "Sorry, ", "Quick question: ", "Just curious: ", "Hello, I am new: ", "First of all: ",
                           "I just arrived, ", "Before we start: ", "Excuse me, ", "hi, ", "hello, "]) + text
    if rng.random() < 0.05:
        text += rng.choice([" Please.", " Thanks.", " Thank you!", " please", " Be short."])
    return text


def make_about(rng, held_out=False, core=False, thinking=True):
    """A question about the model, a command of dmschat, or small talk."""
    kind = rng.random() * (0.84 if held_out else 1.15)
    if kind < 0.44:
        answer = rng.choice(list(ABOUT))
        user, think = about_question(rng, answer, held_out), "This is about me or dmschat."
        if not held_out and rng.random() < 0.15:
            user = user[0].lower() + user[1:].rstrip(".?!")
    elif kind < 0.62:
        command = rng.choice(list(COMMANDS))
        answer = COMMANDS[command][0]
        questions = COMMAND_QUESTIONS if held_out or rng.random() < 0.5 else MORE_COMMAND_QUESTIONS
        user, think = pick(rng, questions, held_out).format(c=command), f"This is about the command {command}"
    elif kind < 0.84:
        command = rng.choice(list(COMMANDS))
        answer = COMMANDS[command][0]
        want = rng.choice(COMMANDS[command][1])
        questions = WANT_QUESTIONS if held_out or rng.random() < 0.5 else MORE_WANT_QUESTIONS
        user, think = pick(rng, questions, held_out).format(w=want), f"This is about the command {command}"
    else:
        answer = rng.choice(list(SMALL_TALK))
        user, think = rng.choice(SMALL_TALK[answer]), "This is small talk."   # single words: nothing to hold out
        if rng.random() < 0.6:
            user = small_talk(rng, answer)
    if not held_out:
        user = vary(rng, user)
    return Turn("about", user, think if thinking else "", answer, answer, held_out=held_out)


TEXT_REQUESTS = ["", "", "", "Summarise this.", "summarize", "What is this about?", "Translate it into {x}.", "Fix this.", "Explain this code.", "What does this do?", "Who is it about?", "Is this good?", "tl;dr",
                 "Rewrite this.", "Continue.", "Correct my English.", "What language is this?", "Shorten this.", "Give it a title.", "How many words are these?", "What do you think of this?", "Why does this fail?",
                 "Improve this text.", "Make this sound polite.", "List the main points.", "Who wrote this?", "Is it true?", "What happens next?", "Review this.", "Answer this letter.", "Where does it take place?", "Find the bug."]


KNOWN_TALK = {shape_of_line(text) for texts in [*SMALL_TALK.values(), *ABOUT.values(), *MORE_QUESTIONS.values(), HELLO, PRESENCE, THANKS, WORKED, BYE, STATE, YES_NO, PRAISE] for text in texts}
KNOWN_WORDS = ABOUT_US | set(" ".join(HELLO + THANKS + BYE + PRAISE + YES_NO).lower().replace(",", "").split())
FUNCTION_WORDS = set("what who how are you is the do does can tell me your my a an of to in for and this that it i about with when where why which have has did was were will would could should".split())


def short_fragment(rng):
    """A fragment that is none of the words with an answer of their own."""
    while True:
        text = fragment(rng)
        if shape_of_line(text) not in KNOWN_TALK and not (len(text.split()) < 3 and KNOWN_WORDS & set(shape_of_line(text).split())):
            return text


def changed_question(rng):
    """A question that the model answers or a piece of small talk with its last word of weight changed: declined."""
    while True:
        source = rng.choice([ABOUT, MORE_QUESTIONS, SMALL_TALK])
        text = rng.choice(source[rng.choice(list(source))])
        words = text.split()
        at = [i for i, word in enumerate(words) if word.strip(".,?!").lower() not in FUNCTION_WORDS]
        if not at or len(words) < 2:
            continue
        mark = words[at[-1]][len(words[at[-1]].rstrip(".,?!")):]
        new = any_word(rng)
        if new in KNOWN_WORDS or new in ABOUT_US:
            continue
        words[at[-1]] = new + mark
        return " ".join(words)


def pasted(rng):
    """A pasted text with nothing or something asked that the model cannot do."""
    units, joiner, _ = make_text(rng, rng.randint(15, 160), numbers=rng.random() < 0.5)
    text, ask = joiner.join(units).strip() or "Nothing.", rng.choice(TEXT_REQUESTS).format(x=rng.choice(["French", "German", "Spanish", "Latin"]))
    return rng.choice([f"{ask}\n{text}", f"{text}\n{ask}", f"{ask} {text}", f"{text}\n\n{ask}"]).strip()


def make_off_topic(rng, held_out=False, core=False, thinking=True):
    """A request outside the tasks; the answer says what the model can do and what to load instead."""
    user = off_topic_request(rng, held_out)
    if not held_out:
        kind = rng.random()
        if kind < 0.16:
            user = short_fragment(rng)
        elif kind < 0.17:
            user = changed_question(rng)
        elif kind < 0.22:
            user = mention(rng)
        user = pasted(rng) if kind > 0.94 else f"/{any_word(rng)}{rng.choice(['', '', ' ' + any_word(rng)])}" if 0.22 < kind < 0.23 else vary(rng, user)
    return Turn("other", user, OFF_TOPIC_THINK if thinking else "", OFF_TOPIC_ANSWER, OFF_TOPIC_ANSWER, held_out=held_out)
