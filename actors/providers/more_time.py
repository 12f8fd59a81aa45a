"""Whether more time follows what was read of a duration, or what multiplies it. Pure functions.

Invariants:
    I1  No text raises, and none is looked at further than its next few words.
    I2  Where in doubt, more follows: what was read alone would be shorter than what is meant, and
        a wait of unknown length is better than a short one.

These words are looked for only to refuse what stands before them; none is ever counted.
"""

from __future__ import annotations

import re

WORD_END = r"(?![A-Za-z\u00b5\u00c0-\u024f\u0370-\u04ff])"
"""Of a word that may stand right before one of a script without blanks: `20s后`."""
UNIT = rf"""
(?: (?:[nuµμm]?s|m|mins?|mn|h|hrs?|d|j|w|wks?|y|yrs?|mos?
      |(?:milli|micro|nano)\w*|msecs?|secs?|seks?|segs?|secon\w*|segun\w*|sekun\w*|minut\w*
      |h(?:ou)?rs?|horas?|heures?|std|stunden?|ore|ora|days?|tage?n?|d[ií]as?|jours?|giorn[oi]
      |weeks?|fortnights?|wochen?|semanas?|semaines?|settiman[ae]
      |months?|monate?n?|mois|mes(?:es)?|mesi|years?|jahre?n?|ans?|años?|anos?|anni|decades?
      |час\w*|мин\w*|сек\w*|день|дня|дней|недел\w*|месяц\w*){WORD_END}
  | [个個]?(?:毫秒|秒|分|小时|小時|时|時|天|日|周|週|星期|月|年|刻|초|분|시간|일|주)
)"""
"""A unit of time as it is written here or elsewhere. For verbose patterns that ignore case."""
COUNT_WORD = r"""
(?: (?:an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w{3,5}teen
      |twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|dozen
      |(?:a[ ])?(?:few|couple(?:[ ]of)?)|several|some|many
      |eine?[nr]?|zwei|drei|dreißig|zwanzig|zehn|une?|deux|trente|una?|dos|treinta|trinta)
      (?:[ -](?:one|two|three|four|five|six|seven|eight|nine))?\b
  | [一二两兩三四五六七八九十百几幾数]{1,8}
)"""
"""A number in words. For verbose patterns that ignore case."""
_FRACTION = r"""
(?: (?:half|halves|quarters?|thirds?|halbe?n?|viertel|media|demie?|meia|mezz[ao])\b
  | [¼½¾⅐-⅞半] | [0-9]+[ ]?[/⁄][ ]?[0-9]+ | [个個]半
)"""
_ALSO = r"""
(?:(?: (?:and|then|plus|or|to|with|another|an?|one|three|additional|extra|more|further|about
         |approx(?:imately)?|around|roughly|nearly|almost|up[ ]to|at[ ]least|und|dann|noch
         |eine?|et|puis|une?|y|una?|luego|ed|e|или|и)\b
     | [零又和及加与另再外])
   [^\w.!?。\n]{0,4}){0,5}
"""
_MORE = re.compile(
    rf"""
    (?:<br[ ]?/?>|[^\w]){{0,8}}+{_ALSO} \d[\d.,]*\s{{0,8}}{UNIT}        # a number with a unit
  | (?:\.(?=\S))?[^\w.!?。\n]{{0,8}}+{_ALSO} (?:
        (?:\d+\s{{0,3}})?{_FRACTION}
      | {COUNT_WORD}[^\w.!?。\n]{{0,3}}(?:{UNIT}|{_FRACTION})
      | (?!an?\b){COUNT_WORD}[^\w.!?。\n]{{0,3}}(?![^\W_])     # `1 hour thirty`
      | {UNIT}(?<=s)[^\w.!?。\n]{{0,3}}\d                  # `minutes: 30`
    )
  | [^\S\n]{{0,8}}+(?:and[^\S\n]{{1,8}})?\d              # a number right behind it
  | (?:[^\S\n]|[,:;&+/·–—-]){{0,4}}+{_ALSO} \d[\d.]*(?![\d.]|[^\S\n]{{0,3}}[^\W\d_])
  | [.]\d
  # Of each of several, or so many times: how many there are is not told, or not counted here.
  | [^\S\n]{{0,3}}[(\[]?(?:[×✕✖∗⋅^²³]|(?<!\*)\*(?!\*)|x[ ]?(?=\d|the\b|number\b|N\b))
  | [^\S\n]?/[^\S\n]?(?:requests?|calls?|attempts?|messages?|tokens?|images?|quer(?:y|ies)|prompts?
      |users?|keys?|retry|tries)\b
  | /(?=[a-z])
  # Counted from a time that is told, and not from now.
  | [^\S\n]{{1,3}}(?:from|after|past|following)[^\S\n]{{1,3}}(?:\d|midnight\b|midday\b|noon\b
      |tomorrow\b|next\b|(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b
      |(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{{0,6}}\b)
  | [^\S\n]{{1,3}}(?:(?:for|with|after|at)[^\S\n]{{1,3}})?(?:per|each|every|apiece)\b
  | [^\S\n]{{0,3}}[(\[,;:–—-][^\S\n]{{0,3}}(?:(?:for|with|after|at)[^\S\n]{{1,3}})?
      (?:per|each|every|apiece)\b
      (?![ -]{UNIT}[ ](?:\w+[ ])?(?:limit|quota|window|rate|budget|cap|allowance)s?\b)
  | [^\S\n]{{1,3}}an?[^\S\n]{{1,3}}(?:\w+[^\S\n])?(?:request|call|attempt|message|token|image|query
      |prompt|user|key|item|job)\b
  | (?:,?[^\S\n]{{1,3}}|[^\S\n]{{0,3}}[(\[])
      (?:times|multiplied|squared|cubed|doubl\w{{1,4}}|twice)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def more_time_follows(text: str, position: int) -> bool:
    """Whether a number, a unit or a fraction behind a position adds to the duration before it."""
    return _MORE.match(text, position) is not None
