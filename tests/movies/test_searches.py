"""Tests what people type against real titles: what a search finds, and what it does not."""

# ruff: noqa: E501 - tables
import csv
import io
import re

from support import Execute

# A title, and searches that find it, separated by `|`.
FOUND = r"""
Spider-Man: No Way Home        | spiderman | spider man | spider-man | Spider-Man: No Way Home | spider-m* | spiderm* | no way home | spider* | SPIDERMAN NO WAY
WALL·E                         | walle | wall-e | wall e | wall·e | WALL-E
Schindler's List               | schindlers list | schindler list | schindler’s list | list schindler
Don’t Listen                   | dont listen | don't listen | don’t listen
9½ Weeks                       | 9 1/2 weeks | 9½ weeks | 9 1/2 | 9 weeks
Łódź nocą                      | lodz noca | łódź nocą | Lodz | LODZ NOCA | ŁÓDŹ
Die Straße                     | die strasse | straße | strasse | STRASSE | DIE STRAẞE
千と千尋の神隠し               | 千尋 | 千と千尋 | 神隠し | 神 | し | 千と千尋の神隠し | の神隠
となりのトトロ                 | トトロ | となり | トトロ* | ﾄﾄﾛ | ロ
ฉลาดเกมส์โกง                   | เกม | ฉลาด | โกง | ฉลาดเกมส์โกง
M*A*S*H                        | m*a*s*h | mash | M*A*S*H | MASH | m a s h
S.W.A.T.                       | swat | s.w.a.t. | s.w.a.t | SWAT | s w a t
Dr. Strangelove or: How I Learned to Stop Worrying and Love the Bomb | Dr. Strangelove or: How I Learned to Stop Worrying and Love the Bomb | strangelove | dr strangelove | love the bomb | dr. s*
Face/Off                       | face off | faceoff | face/off | face-off | face*
Fast & Furious                 | fast and furious | fast & furious | fast furious | furious fast
Law&Order                      | law and order | law & order | law&order | laworder
Amélie                         | amelie | amélie | AMÉLIE | ame*
Çarşı Pazar                    | carsi pazar | çarşı pazar | carsi
İstanbul Kırmızısı             | istanbul kirmizisi | istanbul | İSTANBUL | kirmizi*
Ég man þig                     | eg man thig | ég man þig | eg man
Æon Flux                       | aeon flux | æon flux | aeon | ÆON
Cœur fidèle                    | coeur fidele | cœur fidèle | coeur
Sønner av Norge                | sonner av norge | sønner | SØNNER
Đất rừng phương Nam            | dat rung phuong nam | dat rung | đất rừng
Ħamrun                         | hamrun
10,000 BC                      | 10000 bc | 10,000 bc | 10 000 bc | 10,000
Ｆｕｌｌ Ｗｉｄｔｈ                | full width | ｆｕｌｌ | FULL
Rocky II                       | rocky 2 | rocky two | rocky ii | ROCKY II | rocky 2* | rocky two* | rocky ii* | 2* rocky
Rocky 2                        | rocky 2* | rocky two* | rocky ii* | 2* rocky
Rocky Two                      | rocky 2* | rocky two* | rocky ii* | 2* rocky
Ocean's Twelve                 | oceans 12 | ocean's 12 | oceans xii
Six Days, Seven Nights         | 6 days 7 nights | 6 d*
Pre-Code ﬁlms                  | pre-code films | precode films | ﬁlms
أحلام                          | احلام | أحلام
مدرسة المشاغبين                | مدرسه المشاغبين | مدرسة | المشاغبين
يوم الدين                      | يوم الدين | يَوْم الدِّين | الديـــن
على كف عفريت                   | علي كف | على كف
שָׁלוֹם עַכְשָׁו                  | שלום | שלום עכשו | שָׁלוֹם
בית־ספר                        | בית ספר | בית־ספר | ביתספר
Οδυσσέας                       | οδυσσεας | ΟΔΥΣΣΕΑΣ | οδυσσέας
Броненосец «Потёмкин»          | потемкин | броненосец потёмкин | броненосец*
반드시 잡는다                  | 반드시 | 잡는다 | 반드시 잡는다
霸王别姬                       | 别姬 | 霸王 | 王别 | 姬
កុមារ                          | កុមារ | មារ
ມື້ວານ                          | ວານ | ມື້ວານ
ချစ်သူ                          | သူ | ချစ်သူ
???                            | ??? | ？？？
#cats_the_mewvie               | cats the mewvie | #cats_the_mewvie | catsthemewvie | mewvie
What the F* Is Going On?       | what the f* is going on? | what the f is going on | going on
The Ring                       | ring | the ring | rin*
Romeo + Juliet                 | romeo + juliet | romeo juliet | romeo+juliet | romeo*
The LEGO™ Movie                | lego movie | lego™ movie | LEGO | legotm movie | lego tm movie | the lego*
Pokémon® Live©2000℗            | pokemon live | live 2000 | pokemon®
Alien³                         | alien | alien 3 | alien3 | alien³ | alien³* | alien iii | ALIEN
Xʸ² and H₂O                    | h2o | H₂O | h 2 o | x | xy2
1º de Mayo, 2ª Parte           | 1 de mayo | 1o de mayo | 1º | 2 parte | 2a parte | 2ª
Ocean´s Twelve                 | oceans twelve | ocean's twelve | ocean´s | ocean twelve | OCEAN’S
Ocean`s, Bird¨s and Tom¸s¯     | oceans | birds | bird's | toms | tom's
Rock ’n’ Roll ʼTis O‘Neil      | rock n roll | rock 'n' roll | tis | oneil | o'neil
Hawaiʻi Noꞌa Kealiʿi Oʹneill    | hawaii | hawai'i | noa | kealii | oneill
Rocky③: ⑫ Ⓐⓛⓘⓔⓝⓢ ❷ ⓿ 🅑🄲        | rocky 3 | rocky | 12 | aliens | ⓐⓛⓘⓔⓝⓢ | rocky 2 | bc | ③
RockyⅣ ⅸ                       | rocky iv | rocky 4 | rocky | rockyiv | ix | ⅳ
Ｓｐｉｄｅｒ－Ｍａｎ　２         | spiderman 2 | spider-man | spider man two | ｓｐｉｄｅｒｍａｎ
ﬁlm noir oﬃce Ǆep              | film noir | office | oﬃce | dzep
２½Men and 7⅞th, ½             | men | 2 1/2 men | 2½ | 7 7/8 th | 7⅞
№5 ℡ 100℃ 5㎏ ℅                 | no 5 | no5 | 5 | tel | 100 c | 100c | 5kg | 5 kg | kg
فيلم ٣٠٠                        | فيلم 300 | ٣٠٠ | 300 | ۳۰۰
वर्ष २००१।                      | 2001 | वर्ष | वर्ष २००१ | वर्ष।
Agent ০০৭ ๒๕ ７                 | 007 | agent 007 | 25 | 7 | agent ০০৭
नमस्ते॥लंदन                     | नमस्ते | लंदन | नमस्ते लंदन | नमस्तेलंदन
Երևան։ Մոսկվա՞                  | երևան | մոսկվա
ሰላም፡ዓለም።                       | ሰላም | ዓለም | ሰላምዓለም
བོད་སྐད།                       | བོད | སྐད | བོད་སྐད
شكرا؟نعم۔لا                    | شكرا | نعم | لا
صلى محمدﷺ                      | محمد | الله | محمد صلى
သိန်း။ကျော်                      | သိန်း | ကျော်
ទី។ពីរ                          | ទី | ពីរ
Alien🎬 2🎬3                    | alien | 🎬 | alien 🎬 | alien🎬 | alien 2
I❤️NY                           | i ny | iny | i♥ny
So\u00adft Zero\u200bWidth By\u2066te Tag\U000e0041ged Fil\u3164ler Va\ufe0fr Gra\u034fph Wo\u2060rd | soft | zerowidth | byte | tagged | filler | var | graph | word
No\u00a0Break\u2003Thin\u202fSpace\u3000Wide | no break | thin | space | wide
A\u2028B\u0085C\u1680D\u2800E   | a b c d e
Zalgo t̷̢͛e҉x⃝t                   | zalgo text
मुंबई और कीर्ति                   | मुंबई | कीर्ति
ඒ ක්‍රිස්තු                       | ක්‍රිස්තු
U-571                          | u571 | u-571 | u 571
"""
# Searches that do not find a title.
NOT_FOUND = r"""
Catherine                      | cat | ca | rine | catherin | cat catherine
The Ring                       | rings | the rings | ringu
Seven Samurai                  | seve | samur | seven seven samurai 2
Spider Baby                    | spiderman | spider-m* | spiderbaby girl
Les Misérables                 | miserable | les mis | misérabl
千と尋                         | 千尋 | 尋千 | 千と尋ね
トロール                       | トトロ
Fast Furious                   | fast and furious
1 2 3                          | ½ weeks | 123
One!                           | !!! | ! ! | ?
Drama Queen                    | drama. comedy | dramaqueens
Straße                         | strase | strasses
The LEGO™ Movie                | legos | legot | le go t
Alien³                         | alien 2 | 3alien | alie
मुंबई                           | मबई | म
Rocky③                         | rocky 4 | 3 rocky 2
H₂O                            | h3o | ho
Ocean´s                        | ocean a | ocean´t
ﬁlm                            | lm | fi
Mañana                         | man ana x | n
२००१                           | 200 | 1
"""


def read(table: str) -> list[tuple[str, str]]:
    """Return the pairs of a title and a search; invisible characters are escaped as in Python."""
    text = re.sub(
        r"\\u([0-9a-f]{4})|\\U([0-9a-f]{8})", lambda code: chr(int(code[1] or code[2], 16)), table
    )
    rows = csv.reader(io.StringIO(text.strip()), delimiter="|", quoting=csv.QUOTE_NONE)
    return [(title.strip(), search.strip()) for title, *searches in rows for search in searches]


def find(execute: Execute, table: str) -> list[tuple[str, str, bool]]:
    """Insert the titles; return each pair, and whether the search finds the title."""
    pairs = read(table)
    execute(
        "insert into movies (title, year, runtime, genres)"
        " select distinct unnest(%s), 2000, 100, '{drama}'::text[]",
        [title for title, _ in pairs],
    )
    found = execute(
        "select title, search.text, coalesce(movies.search @@ title_query(search.text), false)"
        " from unnest(%s, %s) as search (title, text) join movies using (title)",
        [title for title, _ in pairs],
        [text for _, text in pairs],
    )
    assert len(found) == len(pairs)
    return found


def test_what_people_type_finds_the_title(execute: Execute) -> None:
    """Signs, accents, letters of other alphabets, words that are written as one."""
    assert [(title, text) for title, text, is_found in find(execute, FOUND) if not is_found] == []


def test_what_is_similar_does_not(execute: Execute) -> None:
    """No parts of words, but in scripts without blanks."""
    assert [(title, text) for title, text, is_found in find(execute, NOT_FOUND) if is_found] == []
