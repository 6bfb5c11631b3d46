//! Cuts an expression into CEL's tokens.

use std::borrow::Cow;
use std::sync::Arc;

use super::error::Flaw;
use super::truth::Comparison;

/// Words that CEL keeps for itself; behind a dot they are names like any other.
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "namespace",
    "package",
    "return",
    "var",
    "void",
    "while",
];

/// Reads tokens from the front of a text. A copy looks ahead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token<'a> {
    /// A metric, dotted or not.
    Name(Cow<'a, str>),
    Text(Arc<str>),
    /// A whole number before its sign.
    Int(u64),
    /// A whole number with suffix `u`.
    Uint(u64),
    Float(f64),
    Bool(bool),
    Null,
    In,
    And,
    Or,
    Not,
    Minus,
    Compare(Comparison),
    Open,
    Close,
    OpenBracket,
    CloseBracket,
    /// A sign of CEL that only unsupported parts use.
    Other(char),
    End,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next token and the byte offset where it starts.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'a>), Flaw> {
        self.skip_blanks();
        let at = self.at;
        let token = match self.peek() {
            None => Token::End,
            Some('"' | '\'') => self.string()?,
            Some(c) if c.is_ascii_digit() => self.number()?,
            Some('.') if self.peek_second().is_some_and(|c| c.is_ascii_digit()) => self.number()?,
            Some(c) if is_name_start(c) => self.word()?,
            Some(c) => self.sign(c)?,
        };
        Ok((at, token))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn peek_second(&self) -> Option<char> {
        self.rest().chars().nth(1)
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// Takes all characters of a kind.
    fn take(&mut self, kind: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let (taken, _) = rest.split_at_checked(rest.find(|c| !kind(c)).unwrap_or(rest.len())).unwrap_or_default();
        self.at += taken.len();
        taken
    }

    /// White space, and comments from `//` to the end of the line.
    fn skip_blanks(&mut self) {
        loop {
            self.take(|c| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0c'));
            if !self.rest().starts_with("//") {
                return;
            }
            self.take(|c| c != '\n');
        }
    }

    fn sign(&mut self, c: char) -> Result<Token<'a>, Flaw> {
        let at = self.at;
        self.bump();
        Ok(match c {
            '(' => Token::Open,
            ')' => Token::Close,
            '[' => Token::OpenBracket,
            ']' => Token::CloseBracket,
            '-' => Token::Minus,
            '!' if self.eat('=') => Token::Compare(Comparison::NotEqual),
            '!' => Token::Not,
            '<' if self.eat('=') => Token::Compare(Comparison::LessOrEqual),
            '<' => Token::Compare(Comparison::Less),
            '>' if self.eat('=') => Token::Compare(Comparison::GreaterOrEqual),
            '>' => Token::Compare(Comparison::Greater),
            '=' if self.eat('=') => Token::Compare(Comparison::Equal),
            '&' if self.eat('&') => Token::And,
            '|' if self.eat('|') => Token::Or,
            '=' => return Err(Flaw::syntax(at, "`=` compares nothing", "write == for equal")),
            '&' => return Err(Flaw::unsupported(at, "`&` (bit operation)", "write && for and")),
            '|' => return Err(Flaw::unsupported(at, "`|` (bit operation)", "write || for or")),
            '+' | '*' | '/' | '%' | '?' | ':' | ',' | '.' | '{' | '}' => Token::Other(c),
            _ => {
                let message = format!("{c:?} is no part of an expression");
                return Err(Flaw::syntax(at, message, "take it out; a metric of an odd name is metric[\"name\"]"));
            }
        })
    }

    /// A name with its dots, or a word of the language.
    fn word(&mut self) -> Result<Token<'a>, Flaw> {
        let (start, from) = (self.at, self.rest());
        let first = self.take(is_name_part);
        if let Some('"' | '\'') = self.peek()
            && matches!(first, "r" | "R" | "b" | "B" | "rb" | "br")
        {
            return Err(Flaw::unsupported(start, "a string with a prefix", "write a plain \"text\""));
        }
        while self.peek() == Some('.') && self.peek_second().is_some_and(is_name_start) {
            self.bump();
            self.take(is_name_part);
        }
        let name = from.get(..self.at - start).unwrap_or_default();
        Ok(match name {
            "true" => Token::Bool(true),
            "false" => Token::Bool(false),
            "null" => Token::Null,
            "in" => Token::In,
            _ if RESERVED.contains(&first) => {
                let message = format!("`{first}` is a reserved word of CEL");
                return Err(Flaw::syntax(start, message, format!("name the metric as metric[\"{name}\"]")));
            }
            _ => Token::Name(Cow::Borrowed(name)),
        })
    }

    fn number(&mut self) -> Result<Token<'a>, Flaw> {
        let (start, from) = (self.at, self.rest());
        if from.starts_with("0x") || from.starts_with("0X") {
            self.at += 2;
            let digits = self.take(|c| c.is_ascii_hexdigit());
            return self.whole(start, u64::from_str_radix(digits, 16).ok());
        }
        let digits = self.take(|c| c.is_ascii_digit());
        let mut is_float = false;
        if self.peek() == Some('.') && self.peek_second().is_some_and(|c| c.is_ascii_digit()) {
            self.bump();
            self.take(|c| c.is_ascii_digit());
            is_float = true;
        }
        is_float |= self.exponent();
        if !is_float {
            return self.whole(start, digits.parse().ok());
        }
        let number: Option<f64> = from.get(..self.at - start).and_then(|text| text.parse().ok());
        self.end_of_number(start)?;
        let fits = number.filter(|n| n.is_finite()).ok_or_else(|| too_large(start))?;
        Ok(Token::Float(fits))
    }

    /// Takes `e5`, `E-3` where digits follow.
    fn exponent(&mut self) -> bool {
        let mut ahead = *self;
        if !(ahead.eat('e') || ahead.eat('E')) {
            return false;
        }
        if !ahead.eat('-') {
            ahead.eat('+');
        }
        let found = !ahead.take(|c| c.is_ascii_digit()).is_empty();
        if found {
            *self = ahead;
        }
        found
    }

    fn whole(&mut self, start: usize, number: Option<u64>) -> Result<Token<'a>, Flaw> {
        let unsigned = self.eat('u') || self.eat('U');
        self.end_of_number(start)?;
        let number = number.ok_or_else(|| too_large(start))?;
        Ok(if unsigned { Token::Uint(number) } else { Token::Int(number) })
    }

    fn end_of_number(&self, start: usize) -> Result<(), Flaw> {
        match self.peek() {
            Some(c) if is_name_part(c) || c == '.' => {
                let mend = "write the bare number, without its unit, with a point and digits on both sides of it";
                Err(Flaw::syntax(start, "this is no number", mend))
            }
            _ => Ok(()),
        }
    }

    fn string(&mut self) -> Result<Token<'a>, Flaw> {
        let start = self.at;
        if self.rest().starts_with("\"\"\"") || self.rest().starts_with("'''") {
            return Err(Flaw::unsupported(start, "a string in three quotes", "write a plain \"text\""));
        }
        let quote = self.bump();
        let mut text = String::new();
        loop {
            let at = self.at;
            match self.bump() {
                None | Some('\n' | '\r') => {
                    return Err(Flaw::syntax(start, "this text has no end", "close the quote on the same line"));
                }
                Some('\\') => text.push(self.escape().ok_or_else(|| wrong_escape(at))?),
                c if c == quote => return Ok(Token::Text(text.into())),
                Some(c) => text.push(c),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Option<char> {
        Some(match self.bump()? {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            c @ ('\\' | '?' | '"' | '\'' | '`') => c,
            'x' | 'X' => self.code_point(2, 16, 0)?,
            'u' => self.code_point(4, 16, 0)?,
            'U' => self.code_point(8, 16, 0)?,
            c @ '0'..='3' => self.code_point(2, 8, c.to_digit(8)?)?,
            _ => return None,
        })
    }

    fn code_point(&mut self, digits: usize, radix: u32, first: u32) -> Option<char> {
        let mut code = first;
        for _ in 0..digits {
            let digit = self.bump()?.to_digit(radix)?;
            code = code.checked_mul(radix)?.checked_add(digit)?;
        }
        char::from_u32(code)
    }
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

fn is_name_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn too_large(at: usize) -> Flaw {
    Flaw::syntax(at, "this number fits into no 64 bits", "write it as a float, as in 1.8e19")
}

fn wrong_escape(at: usize) -> Flaw {
    Flaw::syntax(at, "CEL knows no such escape", "write \\\\ for a backslash, \\n, \\t, \\x41 or \\u00e9")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::rules::error::FaultKind;

    fn tokens(text: &str) -> Result<Vec<Token<'_>>, Flaw> {
        let mut lexer = Lexer::new(text);
        let mut tokens = Vec::new();
        loop {
            match lexer.next()?.1 {
                Token::End => return Ok(tokens),
                token => tokens.push(token),
            }
        }
    }

    fn one(text: &str) -> Token<'_> {
        let mut found = tokens(text).expect(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        found.remove(0)
    }

    #[test]
    fn numbers_keep_their_type() {
        assert_eq!(one("0"), Token::Int(0));
        assert_eq!(one("007"), Token::Int(7));
        assert_eq!(one("9223372036854775808"), Token::Int(1 << 63));
        assert_eq!(one("18446744073709551615u"), Token::Uint(u64::MAX));
        assert_eq!(one("0xFf"), Token::Int(255));
        assert_eq!(one("0x10U"), Token::Uint(16));
        assert_eq!(one("21.5"), Token::Float(21.5));
        assert_eq!(one(".5"), Token::Float(0.5));
        assert_eq!(one("1e3"), Token::Float(1000.0));
        assert_eq!(one("2.5E-1"), Token::Float(0.25));
    }

    #[test]
    fn what_is_nearly_a_number_is_none() {
        for text in ["80C", "1.", "5.x", "1e", "1e400", "0x", "0xg", "18446744073709551616", "1.2.3", "3uu", "2.5u"] {
            assert_eq!(tokens(text).expect_err(text).kind, FaultKind::Syntax, "{text}");
        }
    }

    #[test]
    fn strings_take_both_quotes_and_the_escapes_of_cel() {
        let text = |expected: &str| Token::Text(expected.into());
        assert_eq!(one(r#""a'b""#), text("a'b"));
        assert_eq!(one(r#"'a"b'"#), text("a\"b"));
        assert_eq!(one(r#""\a\b\f\n\r\t\v\\\?\"\'\`""#), text("\x07\x08\x0c\n\r\t\x0b\\?\"'`"));
        assert_eq!(one(r#""\x41\X42\u00e9\U0001F600\101""#), text("ABé😀A"));
        assert_eq!(one("\"压力\""), text("压力"));
        assert_eq!(one("''"), text(""));
        for bad in
            [r#""\q""#, r#""\x4""#, r#""\ud800""#, r#""\U00110000""#, r#""\400""#, r#""\19""#, "\"a", "'a\n'", "'\\"]
        {
            assert_eq!(tokens(bad).expect_err(bad).kind, FaultKind::Syntax, "{bad}");
        }
        for other in ["r'a'", "b\"a\"", "'''a'''", "\"\"\"a\"\"\""] {
            assert_eq!(tokens(other).expect_err(other).kind, FaultKind::Unsupported, "{other}");
        }
    }

    #[test]
    fn a_dotted_name_is_one_token() {
        assert_eq!(one("am2301.temperature"), Token::Name("am2301.temperature".into()));
        assert_eq!(one("_a.b1.in.for"), Token::Name("_a.b1.in.for".into()));
        assert_eq!(one("truely"), Token::Name("truely".into()));
        assert_eq!(tokens("a.0").unwrap().len(), 2, "a segment does not start with a digit");
        let flaw = tokens("1 < loop").expect_err("reserved");
        assert!(flaw.at == 4 && flaw.mend.contains("metric[\"loop\"]"), "{flaw:?}");
    }

    #[test]
    fn blanks_and_comments_are_skipped() {
        let all = tokens("a // why\n\t>= 1 // because").unwrap();
        assert_eq!(all, [Token::Name("a".into()), Token::Compare(Comparison::GreaterOrEqual), Token::Int(1)]);
    }

    #[test]
    fn signs_that_are_no_cel_are_told_with_their_mend() {
        for (text, mend) in [("a = 1", "=="), ("a & b", "&&"), ("a | b", "||"), ("a > 5°", "metric["), ("é", "metric[")]
        {
            let flaw = tokens(text).expect_err(text);
            assert!(flaw.mend.contains(mend), "{text}: {flaw:?}");
        }
    }
}
