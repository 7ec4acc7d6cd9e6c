"""The words of the tasks and of the embedded model: one token each, about 700 in all."""

from __future__ import annotations

import random

from circuits.tasks.example import SLOT

MALE_NAMES = tuple(
    """John Tom James Dan Mark Paul Luke Adam Jack Sam Ben Max Leo Carl Eric Fred Greg Hugo Ivan
    Jeff Karl Liam Matt Neil Oscar Pete Rob Sean Tim Will Bob Gary Henry Kevin Ryan Scott
    Simon Steve Victor Andrew Brian Chris David Frank George Joseph Michael Peter Richard
    Thomas""".split()
)
FEMALE_NAMES = tuple(
    """Mary Anna Sara Kate Lucy Emma Jane Alice Rose Amy Beth Clara Dora Ella Fay Gina Hope Ida
    Julia Kim Lily Mia Nora Olga Pam Ruth Sue Tina Uma Vera Wendy Zoe Laura Linda Maria Megan
    Nancy Paula Rachel Susan Tracy Amber Carol Diana Elena Grace Helen Irene Jenny Karen""".split()
)
NAMES = MALE_NAMES + FEMALE_NAMES

PLACES = tuple(
    """store park school office station garden library market museum hospital restaurant beach
    church farm hotel theater kitchen bakery castle harbor bank zoo gym cafe studio mall""".split()
)
OBJECTS = tuple(
    """drink book ring ball letter basket computer kiss bone snack flower gift map lamp coin key
    bottle picture ticket hat jacket cake guitar phone watch pencil knife plate candle box cup""".split()
)
NOUNS = tuple(
    """dog cat bird teacher doctor farmer student driver singer king queen child friend lawyer
    pilot author cook guard nurse tree river car house road train ship table chair window door
    picture key letter book cabinet baker painter""".split()
)
_IRREGULAR_PLURALS = {"child": "children"}
PLURAL_OF = {noun: _IRREGULAR_PLURALS.get(noun, noun + "s") for noun in NOUNS}
PLURAL_NOUNS = tuple(PLURAL_OF.values())
SINGULAR_OF = {plural: noun for noun, plural in PLURAL_OF.items()} | {noun: noun for noun in NOUNS}

COLORS = tuple("red blue green black white yellow brown pink".split())
ADJECTIVES = COLORS + tuple(
    """big small old new good bad happy sad tired hungry quiet loud cold warm empty full rich
    poor strong weak fast slow clean dirty beautiful strange famous heavy""".split()
)
OPPOSITES = tuple(
    tuple(pair.split("-"))
    for pair in """big-small old-new good-bad happy-sad cold-warm rich-poor strong-weak fast-slow
    clean-dirty empty-full quiet-loud black-white""".split()
)

SINGULAR_VERBS = tuple("is was has knows likes sees walks runs smiles waits moves stands looks needs wants".split())
PLURAL_VERBS = tuple("are were have know like see walk run smile wait move stand look need want".split())
COPULAS = 2  # the first verb pairs take an adjective, the others an object
AUXILIARIES = 3  # the first verb pairs cannot close a relative clause ("the dog that the cats are")

PREPOSITIONS = tuple("near behind beside above below with by from".split())
MOTION_VERBS = tuple("went walked drove came ran traveled".split())
GIVING_VERBS = tuple("gave handed passed offered sent showed sold threw".split())
FINDING_VERBS = tuple("bought made took saw liked found".split())
LOSING_VERBS = tuple("lost took sold found".split())
EVENTS = tuple(
    """war meeting voyage trial project festival strike famine siege drought tour campaign
    exhibition reign contract program plague expedition""".split()
)
LASTING_VERBS = tuple("lasted ran continued extended stretched".split())

NUMBERS = tuple(f"{number:02d}" for number in range(100))
CENTURIES = NUMBERS[11:20]
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
MONTHS = tuple("""January February March April May June July August September October November December""".split())
LETTERS = tuple(chr(ord("A") + index) for index in range(26))
FUNCTIONS = tuple("load save read write open close send parse build move find count".split())
ARGUMENTS = tuple("file size name path value index mode text data width height color level user count key".split())
ACRONYM_WORDS = tuple(
    """Alpha Army Asian Bank Board Bureau Central Chief Court Data Digital Drug East Energy
    Export Federal Food Fund General Global Group Health Home House Institute Internal Island
    Joint Justice Labor Land Legal Marine Medical Motor National Naval North Office Ocean Open
    Police Public Press Radio Research Royal Safety Science State Trade Transit Travel Union
    United Urban Valley Video Vision Water West World""".split()
)
CAPITALS = {
    pair.partition("-")[0]: pair.partition("-")[2]
    for pair in """France-Paris Germany-Berlin Italy-Rome Spain-Madrid Russia-Moscow China-Beijing
    Japan-Tokyo Egypt-Cairo Greece-Athens Poland-Warsaw Austria-Vienna Hungary-Budapest
    Portugal-Lisbon Ireland-Dublin Norway-Oslo Sweden-Stockholm Finland-Helsinki Kenya-Nairobi
    Peru-Lima Cuba-Havana""".split()
}

PAD, BOS, UNK = "<pad>", "<bos>", "<unk>"
FUNCTION_WORDS = tuple(
    """. , : ( ) def self param the The a A an At and to of in at It it he she his her because
    when that so When After While Then Yesterday Later Today One then had long short meal
    argument talk decided give said there year capital opposite began ended Friends very today
    again man woman boy girl day""".split()
)
CONTENT_WORDS = tuple(
    dict.fromkeys(
        NAMES + PLACES + OBJECTS + NOUNS + PLURAL_NOUNS + ADJECTIVES + SINGULAR_VERBS + PLURAL_VERBS
        + PREPOSITIONS + MOTION_VERBS + GIVING_VERBS + FINDING_VERBS + LOSING_VERBS + EVENTS + LASTING_VERBS
        + FUNCTIONS + ARGUMENTS + ACRONYM_WORDS + DAYS + MONTHS + LETTERS + NUMBERS + tuple(CAPITALS)
        + tuple(CAPITALS.values())
    )
)  # fmt: skip
VOCABULARY = tuple(dict.fromkeys((PAD, BOS, UNK, *FUNCTION_WORDS, *CONTENT_WORDS)))
REPEATABLE_WORDS = tuple(word for word in CONTENT_WORDS if word not in FUNCTION_WORDS)

SLOT_WORDS: dict[str, tuple[str, ...]] = {
    "conjunction": ("When", "After", "While"),
    "adverb": ("Then", "Yesterday", "Later", "Today"),
    "went": MOTION_VERBS,
    "gave": GIVING_VERBS,
    "found": FINDING_VERBS,
    "lost": LOSING_VERBS,
    "lasted": LASTING_VERBS,
    "article": ("a", "the"),
    "length": ("long", "short"),
    "gathering": ("meal", "argument", "meeting", "talk"),
    "copula": ("is", "was"),
    "name": NAMES,
    "place": PLACES,
    "object": OBJECTS,
    "adjective": ADJECTIVES,
    "color": COLORS,
    "noun": NOUNS,
    "nouns": PLURAL_NOUNS,
    "preposition": PREPOSITIONS,
    "event": EVENTS,
    "month": MONTHS,
    "day": DAYS,
}


def draw_words(rng: random.Random, frame: str, **given: str) -> dict[str, str]:
    """Return a word for every slot of `frame`: the given words, the others drawn from SLOT_WORDS.

    Raises KeyError if a slot is neither given nor listed in SLOT_WORDS.
    """
    slots = SLOT.findall(frame)
    return {slot: given[slot] if slot in given else rng.choice(SLOT_WORDS[slot]) for slot in slots}
