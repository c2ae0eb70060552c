"""Makes the built-in tokenizer.json: byte-level BPE, trained on text composed here.

Needs Python 3 and `pip install tokenizers==0.23.*`. The result is committed; run this only to
change the tokenizer, since every change makes other block keys.

    python3 generate.py
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
VOCABULARY = 4096
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

NOUNS = """time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government number night
point home water room mother area money story fact month lot right study book eye job word business issue
side kind head house service friend father power hour game line end member law car city community name
president team minute idea body information back parent face level office door health person art war
history party result change morning reason research girl guy moment air teacher force education model
token request answer cache prefix prompt server engine memory block queue cost price table market report
document page paper letter language text sentence example weather river mountain forest garden street
bridge station train ship engineer doctor lawyer artist writer reader driver farmer soldier king queen
machine computer network message user error file folder data key value list map tree node root leaf graph
function method class object type string integer array index loop test result success failure version
temperature pressure energy light sound colour music film picture camera phone screen button window""".split()
VERBS = """be have do say get make go know take see come think look want give use find tell ask work
seem feel try leave call need become put mean keep let begin help talk turn start show hear play run move
like live believe hold bring happen write provide sit stand lose pay meet include continue set learn
change lead understand watch follow stop create speak read allow add spend grow open walk win offer
remember love consider appear buy wait serve die send expect build stay fall cut reach kill remain suggest
raise pass sell require report decide pull return explain hope develop carry break receive agree support
hit produce eat cover catch draw choose cause compute compare measure answer describe summarise translate
route schedule evict match load store fetch parse render encode decode stream retry cancel""".split()
ADJECTIVES = """good new first last long great little own other old right big high different small large
next early young important few public bad same able free full sure better economic strong possible whole
real clear recent certain personal open red difficult available likely short single medical current wrong
private past foreign fine common poor natural significant similar hot dead central happy serious ready
simple left physical general environmental financial blue democratic dark various entire close legal
religious cold final main green nice huge popular traditional cultural slow fast warm quiet empty""".split()
ADVERBS = """up so out just now how then more also here well only very even back there down still in as
too when never really most on why about over such through again where off always today all far long away
yet often ever however almost later much once least ago together around already enough both maybe actually
probably home of course perhaps little before quickly slowly carefully usually nearly""".split()
PREPOSITIONS = "of in to for with on at from by about as into like through after over between out against during without before under around among".split()
DETERMINERS = "the the the the a a an this that these those my your his her its our their some any no every each another".split()
PRONOUNS = "I you he she it we they who what which someone everyone nothing something".split()
AUXILIARIES = "is are was were has have had do does did will would can could should may might must".split()
CONJUNCTIONS = "and and and but or because if when while although since so that than".split()
SHORT = "I'm you're it's don't doesn't didn't isn't can't won't I'll we've that's let's there's".split()
ENDINGS = ["", "", "", "s", "ed", "ing", "er", "ly", "ment", "ness", "tion", "able", "ful", "less"]


def phrase(rng):
    words = [rng.choice(DETERMINERS)]
    if rng.random() < 0.5:
        words.append(rng.choice(ADJECTIVES))
    words.append(rng.choice(NOUNS) + rng.choice(["", "", "s"]))
    if rng.random() < 0.3:
        words += [rng.choice(PREPOSITIONS)] + phrase(rng)
    return words


def clause(rng):
    words = phrase(rng) if rng.random() < 0.6 else [rng.choice(PRONOUNS + SHORT)]
    if rng.random() < 0.5:
        words.append(rng.choice(AUXILIARIES))
    if rng.random() < 0.3:
        words.append(rng.choice(ADVERBS))
    words.append(rng.choice(VERBS) + rng.choice(ENDINGS))
    if rng.random() < 0.8:
        words += phrase(rng)
    if rng.random() < 0.3:
        words.append(rng.choice(ADVERBS))
    return words


def sentence(rng):
    words = clause(rng)
    while rng.random() < 0.35:
        words[-1] += rng.choice([",", ",", ";", ""])
        words += [rng.choice(CONJUNCTIONS)] + clause(rng)
    if rng.random() < 0.1:
        words.insert(rng.randrange(1, len(words)), str(rng.choice([rng.randrange(100), rng.randrange(10000)])))
    words[0] = words[0][0].upper() + words[0][1:]
    return " ".join(words) + rng.choice([".", ".", ".", ".", "?", "!", ":"])


def prose(rng):
    return " ".join(sentence(rng) for _ in range(rng.randrange(2, 8))) + rng.choice(["\n", "\n\n"])


def name(rng):
    return rng.choice(["_", ""]).join(rng.sample(NOUNS + VERBS, rng.randrange(1, 3)))


def code(rng):
    a, b, c = name(rng), name(rng), name(rng)
    return rng.choice([
        f"def {a}({b}, {c}=None):\n    if {b} is None:\n        return {c}\n    for i in range(len({b})):\n        {c}.append({b}[i] + 1)\n    return {c}\n\n",
        f"fn {a}({b}: &str) -> Result<String, Error> {{\n    let mut {c} = Vec::new();\n    for x in {b}.iter() {{\n        {c}.push(x.clone());\n    }}\n    Ok({c})\n}}\n\n",
        f"const {a} = ({b}) => {{\n  return {b}.map((x) => x.{c});\n}};\n\n",
        json.dumps({a: {"type": "object", "properties": {b: {"type": "string", "description": sentence(rng)}, c: {"type": "number"}}, "required": [b]}}) + "\n",
        json.dumps({"name": a, "arguments": {b: rng.randrange(1000), c: name(rng), "enabled": True, "limit": None}}, indent=rng.choice([None, 2])) + "\n",
        f"# {a}\n\n- {sentence(rng)}\n- {sentence(rng)}\n\n```\n{b} --{c} {rng.randrange(10000)} https://{a}.example.com/{b}\n```\n",
    ])


def corpus():
    rng = random.Random(20260)
    for _ in range(20000):
        yield prose(rng) if rng.random() < 0.8 else code(rng)


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    text = json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizer.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
