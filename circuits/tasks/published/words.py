"""The word lists that several of the published tasks draw from.

After a space, every word is one token of GPT-2's tokenizer. For other tokenizers the lists may be shorter; see
Vocabulary.single.
"""

from __future__ import annotations

FEMALE_NAMES = tuple(
    "Mary Anna Kate Sarah Emma Julia Laura Lisa Susan Karen Nancy Linda Helen Alice Jane Rachel Rebecca Emily "
    "Jessica Jennifer Elizabeth Amy Michelle Nicole Melissa Amanda Stephanie Victoria Catherine Katherine Margaret "
    "Barbara Patricia Sandra Donna Carol Ruth Maria Diana Anne Julie Christine Heather Samantha Megan Hannah Olivia "
    "Sophie Claire Lucy".split()
)
MALE_NAMES = tuple(
    "John Tom Paul James Michael Robert David William Richard Joseph Thomas Charles Daniel Matthew Anthony Mark "
    "Donald Steven Andrew Kenneth George Joshua Kevin Brian Edward Ronald Timothy Jason Jeffrey Ryan Jacob Gary "
    "Nicholas Eric Jonathan Stephen Larry Justin Scott Brandon Frank Benjamin Gregory Samuel Raymond Patrick Henry "
    "Peter Walter Arthur".split()
)
NAMES = FEMALE_NAMES + MALE_NAMES

NOUNS = tuple(
    "oil crime population unit mountain garden summer winter water stone bridge forest animal music paper metal glass "
    "school teacher doctor story history market money family friend village castle island ocean valley desert morning "
    "evening breakfast dinner kitchen chair bottle basket candle mirror blanket pillow carpet ladder hammer needle "
    "thread leather cotton silver copper iron sugar butter pepper bread cheese coffee chicken horse sheep rabbit tiger "
    "eagle shark whale snake spider flower grass wheat corn apple lemon orange soup cake candy circus parade concert "
    "theater museum statue painting poem novel chapter sentence grammar accent rhythm melody violin trumpet drum "
    "guitar piano wheel ship boat train truck bicycle plane rocket planet moon cloud thunder snow rain wind fire "
    "smoke ash dust mud clay sand salt coal gas wood wool silk cloth coat shirt skirt shoe boot glove scarf hat crown "
    "sword shield arrow knife spoon fork plate bowl cup jar barrel bucket rope chain anchor sail flag map compass "
    "clock lamp torch bell gate fence wall roof tower tunnel canal harbor beach cliff cave hill farm barn vine "
    "seed leaf bark".split()
)
