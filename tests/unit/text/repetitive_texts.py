"""Two hundred texts with due repetitions, of code, data, verse and prose; and texts of loops."""

import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


COUNTRIES = words(
    "Albania Austria Belgium Bulgaria Croatia Cyprus Denmark Estonia Finland France Germany Greece Hungary Iceland "
    "Ireland Italy Latvia Lithuania Luxembourg Malta Moldova Monaco Norway Poland Portugal Romania Serbia Slovakia "
    "Slovenia Spain Sweden Switzerland Turkey Ukraine"
)
NAMES = words("Ada Ben Cleo Dan Eve Finn Gina Hugo Iris Jon Kim Leo Mia Ned Ola Pia")
GIFTS = (
    "a partridge in a pear tree", "two turtle doves", "three French hens", "four calling birds", "five gold rings",
    "six geese a-laying", "seven swans a-swimming", "eight maids a-milking", "nine ladies dancing",
    "ten lords a-leaping", "eleven pipers piping", "twelve drummers drumming",
)  # fmt: skip
ORDINALS = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
JACK = (
    "lay in the house that Jack built", "ate the malt", "killed the rat", "worried the cat", "tossed the dog",
    "milked the cow with the crumpled horn", "kissed the maiden all forlorn", "married the man all tattered and torn",
    "woke the priest all shaven and shorn", "kept the cock that crowed in the morn", "was sowing his corn",
)  # fmt: skip
THINGS = ("malt", "rat", "cat", "dog", "cow", "maiden", "man", "priest", "cock", "farmer", "horse")
FLIES = (
    ("fly", ""), ("spider", "that wriggled and jiggled and tickled inside her"), ("bird", ""), ("cat", ""),
    ("dog", ""), ("goat", ""), ("cow", ""),
)  # fmt: skip
CHORUS = (
    "Oh, carry me over the water,\nOh, carry me over the sea,\nThe wind is my only companion,\nand the wind is "
    "coming for me.\n"
)
VERSES = (
    "The harbour was sleeping at midnight,\nthe lanterns were low on the pier,\nI packed all my letters in silence\n"
    "and whispered that no one was near.\n",
    "The captain had eyes like the winter,\nhis coat was the colour of rain,\nhe asked me for nothing but stories,\n"
    "and then he would ask them again.\n",
    "We came to an island of pelicans,\nthe sand was as white as a bone,\nI wrote you a line in the shallows,\n"
    "the tide took the letters alone.\n",
)
LETTER = (
    "Dear {name},\n\nThank you very much for coming to our summer party last week. It meant a lot to us that you took "
    "the time to travel all the way to the lake, and the children still talk about the games that you played with "
    "them on the meadow behind the house. We hope that you got home safely, that the train was not too late, and that "
    "we will see each other again in autumn, when the apples are ripe and the new terrace is finished at last. If you "
    "find the blue umbrella in your luggage, please keep it until then; nobody here needs it before the rain "
    "begins.\n\nWith warm regards,\nthe whole family\n\n"
)
CLAUSE = (
    "{place}. The tenant shall keep the {room} clean and in good repair, shall not paint or otherwise change the "
    "{room} without the written consent of the landlord, and shall return the {room} in the condition in which it was "
    "received, fair wear and tear excepted.\n"
)


def fenced(language: str, code: str) -> str:
    """Return code within a fence, with a sentence before and after."""
    return f"Here is the code:\n\n```{language}\n{code}\n```\n\nIt does what you asked for."


def tables() -> Iterator[str]:
    for size in (8, 10, 12, 16):
        rows = [[str(row * column) for column in range(1, size + 1)] for row in range(1, size + 1)]
        yield table(rows)
        yield "\n".join(f"{row} x {column} = {row * column}" for row in range(1, size) for column in range(1, 11))
        yield "\n".join(" ".join(f"{value:>4}" for value in row) for row in rows)
        yield "; ".join(f"{row} times {column} is {row * column}" for row in range(2, 6) for column in range(1, size))
    for rows_, columns in ((8, 5), (20, 4), (30, 3), (31, 6)):
        yield table([[" "] * columns for _ in range(rows_)])
        yield table([[str(place), *["no"] * (columns - 1)] for place in range(rows_)])
        yield table([["x", *["yes"] * (columns - 1)] for _ in range(rows_)])
        yield table([["0"] * columns for _ in range(rows_)])
    yield table([[name, "present", "present", "absent", "present"] for name in NAMES * 2])
    yield table([[f"{hour}:00", "free", "free", "free", "free", "free"] for hour in range(24)])


def table(rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    head = [f"column {place}" for place in range(len(rows[0]))]
    lines = [head, ["---"] * len(head), *rows]
    return "Here is the table.\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def data() -> Iterator[str]:
    people = [{"name": name, "age": 30, "city": "Oslo", "active": True, "tags": []} for name in NAMES]
    same = [{"x": 0, "y": 0, "visible": False}] * 30
    for value in (people, same, [0] * 200, [[0] * 10] * 10, {"grid": [["."] * 8] * 8}, [None] * 100, ["ok"] * 30):
        yield json.dumps(value)
        yield json.dumps(value, indent=2)
        yield fenced("json", json.dumps(value, indent=4))
        yield f"Sure, here it is:\n{json.dumps(value, indent=1)}\n"
    yield "name,city,ok\n" + "".join(f"{name},Oslo,yes\n" for name in NAMES * 3)
    yield "a,b,c\n" + "yes,no,no\n" * 30
    yield "0,0,0,0\n" * 30
    yield "1\t0\t0\n" * 40
    yield "<table>\n" + "<tr><td>0</td><td>0</td></tr>\n" * 20 + "</table>\n"
    yield fenced("html", "<ul>\n" + "  <li><a href='#'>Link</a></li>\n" * 20 + "</ul>")
    yield fenced("yaml", "jobs:\n" + "  - name: test\n    run: make test\n    needs: [build]\n" * 16)
    yield fenced("svg", '<rect x="0" y="0" width="10" height="10" fill="black" stroke="none"/>\n' * 20)
    yield fenced("sql", "INSERT INTO items (name, price, stock) VALUES ('pen', 1, 0);\n" * 24)
    yield fenced("", "\n".join(f"2026-11-30 12:{minute:02}:00 INFO worker: job done in 4 ms" for minute in range(60)))
    yield "\n".join(f"2026-11-30 12:{minute:02}:00 INFO worker finished one job" for minute in range(60))
    yield "\n".join(f"[12:{minute:02}:00] GET /health 200 OK" for minute in range(60))
    yield "[INFO] connection accepted, waiting for the next one\n" * 16
    yield "12:00 ping from the server\n12:01 pong from the client\n" * 20
    yield "\n".join(f"Epoch {epoch}/50 - loss: {1 / epoch:.4f} - accuracy: 0.9{epoch:02}" for epoch in range(1, 51))
    yield "\n".join(f"test_case_{place} ... ok" for place in range(80))
    yield "\n".join(f"ok {place} - the parser accepts the file" for place in range(60))


def boards() -> Iterator[str]:
    for size in (8, 9, 10, 16):
        for sign in (".", "0", "#", "░"):
            yield "\n".join(" ".join(sign * size) for _ in range(size))
    yield "\n".join(["+---" * 8 + "+", "|   " * 8 + "|"] * 8)
    yield "Day planner:\n" + "\n".join("_" * 40 for _ in range(20))
    yield "\n".join("*" * count for count in range(1, 40))
    yield "\n".join(" ".join("01"[row == column] for column in range(12)) for row in range(12))


def code() -> Iterator[str]:
    for count in (6, 12, 24, 36):
        yield fenced("python", "\n".join("print('Hello')" for _ in range(count)))
        yield fenced("python", "\n".join(f"print({place})" for place in range(count * 4)))
        yield fenced("python", "\n".join(f"assert add({a}, {a}) == {2 * a}" for a in range(count * 2)))
        test = "def test_{n}():\n    session = open_session('model', progress=False)\n    answer = session.ask('Hi')\n"
        test += "    assert answer.text == 'Hello'\n    assert answer.tokens == 3\n    session.close()\n\n\n"
        yield fenced("python", "".join(test.replace("{n}", str(place)) for place in range(count)))
        yield fenced("c", "\n".join(f"case {place}: return handle(event, state, {place});" for place in range(count)))
        yield fenced("css", "\n".join(f".c{place} {{ margin: 0; padding: 0; border: 0; }}" for place in range(count)))
        yield fenced("", "    mov eax, [esi]\n    add esi, 4\n    mov [edi], eax\n    add edi, 4\n" * count)
    yield fenced("python", "matrix = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0],\n" * 8 + "]")
    yield fenced("python", "grid = [\n" + "    ['.', '.', '.', '.', '.', '.'],\n" * 16 + "]")
    yield "def zeros():\n    return [\n" + "        [0.0, 0.0, 0.0],\n" * 16 + "    ]\n"
    yield fenced("java", "    private String name;\n    private int age;\n\n" * 12)
    yield fenced("music", "C G Am F | C G Am F | C G Am F | C G Am F |\n" * 12)
    yield fenced("abc", "|: G2 G2 A2 B2 | G2 B2 A2 D2 :|\n" * 12)


def verse() -> Iterator[str]:
    yield "\n\n".join(
        f"On the {ordinal} day of Christmas\nmy true love gave to me\n"
        + ",\n".join([*GIFTS[day:0:-1], "and " * bool(day) + GIFTS[0]])
        for day, ordinal in enumerate(ORDINALS)
    )
    for end in ("\n", " "):
        yield "\n\n".join(
            end.join(
                [f"This is the {THINGS[last]} that {JACK[last]},"]
                + [f"that {JACK[place]}," for place in range(last - 1, -1, -1)]
            )
            for last in range(len(JACK))
        )
    yield "\n\n".join(
        f"There was an old lady who swallowed a {animal}.\n"
        + "".join(f"She swallowed the {FLIES[place][0]} to catch the {FLIES[place - 1][0]}{FLIES[place - 1][1] and ' '}"
                  f"{FLIES[place - 1][1]},\n" for place in range(last, 0, -1))
        + "I don't know why she swallowed the fly.\nPerhaps she'll die."
        for last, (animal, _) in enumerate(FLIES)
    )  # fmt: skip
    for bottles in (12, 20, 40):
        yield "\n\n".join(
            f"{count} bottles of milk on the wall, {count} bottles of milk.\nTake one down and pass it around, "
            f"{count - 1} bottles of milk on the wall."
            for count in range(bottles, 0, -1)
        )
    for farm in (4, 8):
        sounds = list(
            zip(
                words("cow pig duck horse sheep cat dog hen"),
                words("moo oink quack neigh baa meow woof cluck"),
                strict=True,
            )
        )
        yield "\n\n".join(
            f"Old MacDonald had a farm, E-I-E-I-O.\nAnd on that farm he had a {animal}, E-I-E-I-O.\n"
            f"With a {sound}-{sound} here and a {sound}-{sound} there,\nhere a {sound}, there a {sound}, everywhere a "
            f"{sound}-{sound},\nOld MacDonald had a farm, E-I-E-I-O."
            for animal, sound in sounds[:farm]
        )
    for times in (1, 2, 3):
        yield "\n".join(f"{part}\n{CHORUS * times}" for part in VERSES)
        yield "\n".join(f"[Verse {place}]\n{part}\n[Chorus]\n{CHORUS}" for place, part in enumerate(VERSES * times))
    yield (
        f"Row, row, row your boat,\ngently down the stream,\n{', '.join(['merrily'] * 4)},\nlife is but a dream.\n\n"
        * 3
    )
    doubled = ("Brother John,", "are you sleeping?", "Morning bells are ringing,", "Ding, dang, dong.")
    yield "\n\n".join("\n".join([line] * 2) for line in doubled * 2)
    yield "Lord, have mercy.\nChrist, have mercy.\nLord, have mercy.\n\n" * 3
    yield "\n".join(f"{name}, pray for the sailors at sea;\nhear us, we ask you." for name in NAMES)
    yield "Wir lagen vor Anker,\nahoi, Kameraden,\nahoi, ahoi!\n" * 3 + VERSES[0]
    yield "La la la la la la la la,\nla la la la la.\n" * 4


def prose() -> Iterator[str]:
    licence = (ROOT / "LICENSE").read_text()
    yield licence
    paragraphs = licence.split("\n\n")
    for part in range(0, min(len(paragraphs), 40), 8):
        yield "\n\n".join(paragraphs[part : part + 8])
    yield ", ".join(COUNTRIES) + "."
    yield "\n".join(f"- {country}" for country in COUNTRIES)
    yield "\n".join(f"{place}. {country}" for place, country in enumerate(COUNTRIES, 1))
    yield "\n".join(f"The capital of {country} is a city in {country}." for country in COUNTRIES)
    yield "".join(LETTER.format(name=name) for name in NAMES[:6])
    rooms = ("kitchen", "bath", "cellar", "garden", "garage", "attic", "hall", "balcony", "laundry", "shed")
    yield "\n".join(CLAUSE.format(place=place, room=room) for place, room in enumerate(rooms, 1))
    body = LETTER.format(name="Ada")
    yield f"First draft:\n\n{body}\nFinal version:\n\n{body}"
    yield f"Original:\n\n{body}\nCorrected:\n\n{body.replace('very much', 'a lot')}\nTranslation: Liebe Ada, danke!"
    for count in (10, 20):
        yield "\n".join(f"{place}. I will not talk in class." for place in range(1, count + 1))
        yield "\n".join(f"Row {row}: knit two, purl two, repeat to the end." for row in range(1, count + 1))
        yield "\n".join(f"{row}. {('Knit', 'Purl')[row % 2]} all stitches." for row in range(1, count + 1))
        yield "\n\n".join(
            f"**Test case {place}**\n- Input: a = {place}, b = {place * place}\n- Steps: open the page, enter both "
            f"values, press the button and read the result\n- Expected: {place + place * place}"
            for place in range(1, count + 1)
        )
        yield "\n\n".join(
            f"**Question {place}:** What is {place} plus {place + 1}?\n**Answer:** {2 * place + 1}"
            for place in range(1, count + 1)
        )
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    meals = "- Breakfast: oats\n- Lunch: soup\n- Dinner: rice and beans\n"
    yield "\n".join(f"**{day}**\n{meals}" for day in days)
    yield "\n".join(f"## Week {week}\n" + "".join(f"**{day}**\n{meals}" for day in days) for week in (1, 2))
    circuit = ("Squats", "Push-ups", "Plank", "Lunges", "Rest")
    yield "\n".join(f"{place}. {circuit[(place - 1) % 5]}" for place in range(1, 16))
    yield "\n".join(
        f"Round {round_}\n" + "".join(f"{place}. {name}\n" for place, name in enumerate(circuit, 1))
        for round_ in range(1, 5)
    )
    yield "\n".join(
        f"Day {day}: {('Chest and arms, thirty minutes.', 'Legs, thirty minutes.', 'Rest.')[day % 3]}"
        for day in range(1, 31)
    )
    form = "\n".join(f"{field}: ____________" for field in ("Name", "Date of birth", "Address", "Phone", "Signature"))
    yield f"{form}\n\n" * 6
    yield "\n".join(
        f"{'AB'[turn % 2]}: {('How are you?', 'Fine, and you?', 'Fine, thanks.', 'Good.')[turn % 4]}"
        for turn in range(16)
    )
    yield "\n\n".join(f"**English:** {each}\n**Esperanto:** La {each.lower()}" for each in COUNTRIES)
    yield "\n".join(f"{place}. e4 e5 Nf3 Nc6 Bb5 a6" for place in range(1, 9))
    yield "1, 2, 3, 4, 5, 6, 7, 8, 9, 10. " + " ".join(str(number) for number in range(1, 301))
    yield ", ".join(["0"] * 100)
    yield "0.3333333333333333333333333333333333333333333333333333333333333333"
    yield "".join("你好。再见。" for _ in range(6))
    yield "buffalo Buffalo buffalo buffalo Buffalo buffalo Buffalo buffalo"
    yield "had had had had had had had had had had had"
    yield "Knock, knock.\nWho's there?\nBanana.\nBanana who?\n\n" * 3 + "Orange you glad I didn't say banana?"


def own() -> Iterator[str]:
    """Yield guides and modules of this repository."""
    for guide in ("sampling_and_seeds", "evaluating", "limits", "troubleshooting"):
        yield (ROOT / "tutorials" / "guides" / f"{guide}.md").read_text()
    for module in ("core/words.py", "cli/sampling.py"):
        yield fenced("python", (ROOT / "toolkit" / "rekindle" / module).read_text())
    yield (ROOT / "Makefile").read_text()


LEGITIMATE = (tables, data, boards, code, verse, prose, own)
"""Texts with due repetitions, by kind."""


AGENDA = (
    "Objective", "Date", "Time", "Location", "Agenda", "Participants", "Materials", "Budget", "Risks", "Roles", "Notes",
    "Follow-up",
)  # fmt: skip
STEPS = (
    "Prepare the questions that you want to ask",
    "Arrive ten minutes early",
    "Bring a pen and a notebook",
    "Listen before you speak",
    "Ask for a summary at the end",
)
CAT = "I'm just a cat owner who loves my cat and wants to make sure she's taken care of. "
TOYS = (
    "She loves to play with balls and she loves to play with toys. "
    "She loves to play with toys and she loves to play with balls. "
)
OPTIONS = tuple(
    f"* **{title}**: Consider providing options for different types of activities, such as outdoor events or indoor "
    "events.\n"
    for title in ("Comfortable environment", "Flexible equipment")
)
ANCIENT = (
    "In ancient {place}, the goddess of love and beauty ruled over the sea and the land, and the people built a temple "
    "for her on the hill above the harbour. "
)
PLACES = ("China", "Rome", "Egypt", "Greece", "Persia")


def loops() -> dict[str, str]:
    """Return texts of loops by name."""
    items = [
        (place, AGENDA[(place - 1) % 12], AGENDA[(place - 1) % 5], STEPS[(place - 1) % 5]) for place in range(1, 41)
    ]
    return {
        "equal words": "the sea " * 60,
        "a sentence": CAT * 20,
        "two sentences in turns": TOYS * 12,
        "a paragraph": f"I'm sorry for any misunderstanding. {CAT * 2}\n\n" * 12,
        "a numbered list that restarts": "\n".join(f"{place}. **{title}**" for place, title, _, _ in items),
        "a numbered list with texts": "\n".join(f"{place}. **{title}**: {step}." for place, _, title, step in items),
        "a list of bullets": "".join(f"* **{AGENDA[place % 7]}**: {STEPS[place % 5]}.\n" for place in range(120)),
        "bullets in no order": "".join(OPTIONS[place * place % 7 % 2] for place in range(24)),
        "sentences about changing places": "".join(
            ANCIENT.format(place=PLACES[place * place % 5]) for place in range(40)
        ),
        "numbered steps": "\n".join(f"Step {place}: {'. '.join(STEPS)}." for place in range(1, 30)),
        "changing numbers": "".join(f"Planning for the next {place * 37 % 1000} years... " for place in range(60)),
        "code without an end": "```python\n" + "print('Hello')\n" * 400,
        "a board without an end": "0 0 0 0\n" * 300,
        "a verse without an end": "We sail away today,\nwe sail away tonight.\n" * 40,
    }
