//! Words of the prose: from `retrofit/data/words.py`.

pub fn list(words: &'static str) -> Vec<&'static str> {
    words.split_whitespace().collect()
}

pub const NAMES: &str = "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karl Lena Max Nora Oscar Paula Quentin Rosa Simon \
    Tara Ulrich Vera Walter Xenia Yusuf Zoe Alice Boris Carmen Dmitri Elena Farid Gita Hugo Ines Jonas Kofi Leila Marco Nina";
pub const CITIES: &str = "Paris London Berlin Madrid Rome Vienna Oslo Lisbon Athens Prague Dublin Warsaw Cairo Tokyo Lima Delhi \
    Boston Chicago Toronto Sydney Nairobi Lagos Quito Seoul Zurich Geneva Hamburg Munich";
pub const COLOURS: &str =
    "red blue green yellow orange purple brown black white grey pink silver golden violet turquoise";
pub const NOUNS: &str = "river mountain garden house window door table chair lamp road bridge forest field boat ship train station \
    market village city tower castle school teacher student doctor farmer baker painter sailor captain soldier king queen child \
    brother sister mother father friend neighbour dog cat horse bird fish sheep cow mouse wolf fox bear owl tree flower leaf root \
    apple pear cherry bread cheese soup kettle bottle cup plate spoon knife basket box bag letter book page story song picture map \
    clock coin ring coat hat shoe glove blanket carpet mirror candle fire smoke stone sand water rain snow wind storm cloud sun";
pub const ADJECTIVES: &str = "old young big small long short high low wide narrow bright dark warm cold hot cool dry wet clean dirty \
    quiet loud fast slow heavy light strong weak rich poor happy sad angry calm kind cruel brave shy clever simple strange common \
    rare empty full open closed broken new ancient modern";
pub const VERBS: &str = "saw found lost carried opened closed painted cleaned moved pushed pulled bought sold kept left reached \
    crossed followed watched heard called met helped liked loved hated feared wanted needed used made built broke fixed";
pub const MOVES: &str =
    "walked ran went drove sailed flew travelled hurried climbed wandered jumped rode came returned marched";
pub const PREPOSITIONS: &str =
    "near behind beside under above across along around through past towards beyond before inside outside against";
pub const TIMES: [&str; 12] = [
    "in the morning",
    "in the evening",
    "at night",
    "at noon",
    "after lunch",
    "last year",
    "last week",
    "on Monday",
    "in spring",
    "every day",
    "long ago",
    "the next morning",
];
pub const OWNERS: [&str; 20] = [
    "the red door",
    "the blue door",
    "the green box",
    "the old safe",
    "the garden gate",
    "the wine cellar",
    "the north tower",
    "the south gate",
    "the main server",
    "the staff room",
    "the bicycle lock",
    "the garage",
    "the lift",
    "the alarm",
    "the printer",
    "the archive",
    "the vault",
    "the boat house",
    "the kitchen",
    "the library",
];
