//! Character references of HTML: `&amp;`, `&#8364;`, `&#x20ac;`.

use std::borrow::Cow;

/// Longest name, with its `&`.
const MAX_NAME: usize = 12;

/// Names of HTML 4 and their characters, in decimal.
const NAMES: &str = "\
    quot 34 amp 38 lt 60 gt 62 nbsp 160 iexcl 161 cent 162 pound 163 curren 164 yen 165 brvbar 166 sect 167 \
    uml 168 copy 169 ordf 170 laquo 171 not 172 shy 173 reg 174 macr 175 deg 176 plusmn 177 sup2 178 \
    sup3 179 acute 180 micro 181 para 182 middot 183 cedil 184 sup1 185 ordm 186 raquo 187 frac14 188 \
    frac12 189 frac34 190 iquest 191 Agrave 192 Aacute 193 Acirc 194 Atilde 195 Auml 196 Aring 197 AElig 198 \
    Ccedil 199 Egrave 200 Eacute 201 Ecirc 202 Euml 203 Igrave 204 Iacute 205 Icirc 206 Iuml 207 ETH 208 \
    Ntilde 209 Ograve 210 Oacute 211 Ocirc 212 Otilde 213 Ouml 214 times 215 Oslash 216 Ugrave 217 \
    Uacute 218 Ucirc 219 Uuml 220 Yacute 221 THORN 222 szlig 223 agrave 224 aacute 225 acirc 226 atilde 227 \
    auml 228 aring 229 aelig 230 ccedil 231 egrave 232 eacute 233 ecirc 234 euml 235 igrave 236 iacute 237 \
    icirc 238 iuml 239 eth 240 ntilde 241 ograve 242 oacute 243 ocirc 244 otilde 245 ouml 246 divide 247 \
    oslash 248 ugrave 249 uacute 250 ucirc 251 uuml 252 yacute 253 thorn 254 yuml 255 OElig 338 oelig 339 \
    Scaron 352 scaron 353 Yuml 376 fnof 402 circ 710 tilde 732 Alpha 913 Beta 914 Gamma 915 Delta 916 \
    Epsilon 917 Zeta 918 Eta 919 Theta 920 Iota 921 Kappa 922 Lambda 923 Mu 924 Nu 925 Xi 926 Omicron 927 \
    Pi 928 Rho 929 Sigma 931 Tau 932 Upsilon 933 Phi 934 Chi 935 Psi 936 Omega 937 alpha 945 beta 946 \
    gamma 947 delta 948 epsilon 949 zeta 950 eta 951 theta 952 iota 953 kappa 954 lambda 955 mu 956 nu 957 \
    xi 958 omicron 959 pi 960 rho 961 sigmaf 962 sigma 963 tau 964 upsilon 965 phi 966 chi 967 psi 968 \
    omega 969 thetasym 977 upsih 978 piv 982 ensp 8194 emsp 8195 thinsp 8201 zwnj 8204 zwj 8205 lrm 8206 \
    rlm 8207 ndash 8211 mdash 8212 lsquo 8216 rsquo 8217 sbquo 8218 ldquo 8220 rdquo 8221 bdquo 8222 \
    dagger 8224 Dagger 8225 bull 8226 hellip 8230 permil 8240 prime 8242 Prime 8243 lsaquo 8249 rsaquo 8250 \
    oline 8254 frasl 8260 euro 8364 image 8465 weierp 8472 real 8476 trade 8482 alefsym 8501 larr 8592 \
    uarr 8593 rarr 8594 darr 8595 harr 8596 crarr 8629 lArr 8656 uArr 8657 rArr 8658 dArr 8659 hArr 8660 \
    forall 8704 part 8706 exist 8707 empty 8709 nabla 8711 isin 8712 notin 8713 ni 8715 prod 8719 sum 8721 \
    minus 8722 lowast 8727 radic 8730 prop 8733 infin 8734 ang 8736 and 8743 or 8744 cap 8745 cup 8746 \
    int 8747 there4 8756 sim 8764 cong 8773 asymp 8776 ne 8800 equiv 8801 le 8804 ge 8805 sub 8834 sup 8835 \
    nsub 8836 sube 8838 supe 8839 oplus 8853 otimes 8855 perp 8869 sdot 8901 lceil 8968 rceil 8969 \
    lfloor 8970 rfloor 8971 lang 9001 rang 9002 loz 9674 spades 9824 clubs 9827 hearts 9829 diams 9830 \
    apos 39";

/// Windows-1252 from 0x80 on, which numbers of HTML and pages in Latin-1 mean.
const WINDOWS: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}', '\u{2c6}', '\u{2030}',
    '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}', '\u{90}', '\u{2018}', '\u{2019}', '\u{201c}',
    '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}', '\u{2dc}', '\u{2122}', '\u{161}', '\u{203a}', '\u{153}', '\u{9d}',
    '\u{17e}', '\u{178}',
];

/// A byte of a page in Latin-1 or Windows-1252.
pub fn latin(byte: u8) -> char {
    match byte {
        0x80..=0x9f => WINDOWS[usize::from(byte - 0x80)],
        byte => char::from(byte),
    }
}

/// The text with all references replaced that are known. Others stay as they are.
pub fn decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (c, length) = reference(rest).unwrap_or(('&', 1));
        out.push(c);
        rest = &rest[length..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The character that a text begins with a reference to, and the bytes of the reference.
fn reference(text: &str) -> Option<(char, usize)> {
    let name = &text[1..];
    let (number, radix, before) = match name.strip_prefix('#') {
        Some(hex) if hex.starts_with(['x', 'X']) => (&hex[1..], 16, 3),
        Some(decimal) => (decimal, 10, 2),
        None => return named(name),
    };
    let digits = number.find(|c: char| !c.is_digit(radix)).unwrap_or(number.len());
    if digits == 0 {
        return None;
    }
    let code = u32::from_str_radix(&number[..digits], radix).unwrap_or(u32::MAX);
    let c = match code {
        0x80..=0x9f => WINDOWS[code as usize - 0x80],
        0 => char::REPLACEMENT_CHARACTER,
        code => char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    let end = before + digits;
    Some((c, end + usize::from(text[end..].starts_with(';'))))
}

fn named(name: &str) -> Option<(char, usize)> {
    let length = name.bytes().take(MAX_NAME).take_while(u8::is_ascii_alphanumeric).count();
    if !name[length..].starts_with(';') {
        return None;
    }
    let mut words = NAMES.split(' ');
    while let (Some(word), Some(code)) = (words.next(), words.next()) {
        if word == &name[..length] {
            return Some((char::from_u32(code.parse().ok()?)?, length + 2));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_become_characters_and_others_stay() {
        for (text, expected) in [
            ("a &lt;b&gt; &amp;amp; &quot;&apos;", "a <b> &amp; \"'"),
            ("&eacute;&Eacute;&euro;&hearts;&nbsp;.", "\u{e9}\u{c9}\u{20ac}\u{2665}\u{a0}."),
            ("&#233;&#xE9;&#XE9;&#233 x&#128;", "\u{e9}\u{e9}\u{e9}\u{e9} x\u{20ac}"),
            ("&#0;&#xd800;&#99999999999999;", "\u{fffd}\u{fffd}\u{fffd}"),
            ("AT&T &nosuch; &; &# &#x; &lt &", "AT&T &nosuch; &; &# &#x; &lt &"),
        ] {
            assert_eq!(decoded(text), expected);
        }
        assert!(NAMES.split(' ').count().is_multiple_of(2));
    }
}
