//! Compiles an expression: shunting-yard over explicit stacks, so that no input makes it recurse.

use std::borrow::Cow;
use std::sync::Arc;

use super::error::{Fault, Flaw};
use super::lexer::{Lexer, Token};
use super::program::{Op, Program, STACK_MAX, Source};
use super::truth::Comparison;
use crate::model::Value;

/// Longest expression.
pub(super) const TEXT_BYTES_MAX: usize = 4096;
/// Parentheses and `!` that may be open at a time.
pub(super) const DEPTH_MAX: usize = 32;
/// Metrics, literals and operators of one expression.
pub(super) const NODES_MAX: usize = 256;

// One level holds at most one waiting condition for each of `||`, `&&` and a comparison.
const _: () = assert!(3 * (DEPTH_MAX + 1) < STACK_MAX);

/// The name that may stand before `["name"]`.
const ALL_METRICS: &str = "metric";

/// Compiles an expression. The fault says what is wrong, where, and how it is mended.
pub(super) fn parse(text: &str) -> Result<Program, Fault> {
    Parser::new(text).run().map_err(|flaw| Fault::new(text, flaw))
}

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// Operators whose right side is not complete, with their place.
    pending: Vec<(Pending, usize)>,
    /// Operands that no operator has taken yet.
    values: Vec<Entry>,
    program: Program,
    nodes: usize,
    /// Parentheses and `!` in `pending`.
    depth: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Paren,
    Or,
    And,
    Compare(Comparison),
    Not,
}

impl Pending {
    /// Higher binds tighter.
    fn strength(self) -> u8 {
        match self {
            Self::Paren => 0,
            Self::Or => 1,
            Self::And => 2,
            Self::Compare(_) => 3,
            Self::Not => 4,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::Or => "||",
            Self::And => "&&",
            Self::Not => "!",
            Self::Paren | Self::Compare(_) => "a comparison",
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    source: Source,
    kind: Kind,
    at: usize,
}

/// What is known of an operand's type before there is a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A metric: known only at run time.
    Any,
    Number,
    Text,
    Bool,
    /// The outcome of an operator.
    Outcome,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Any => "a metric",
            Self::Number => "a number",
            Self::Text => "a text",
            Self::Bool => "a boolean",
            Self::Outcome => "a condition",
        }
    }

    fn may_equal(self, other: Self) -> bool {
        let plain = |kind| if kind == Self::Outcome { Self::Bool } else { kind };
        self == Self::Any || other == Self::Any || plain(self) == plain(other)
    }

    fn may_be_condition(self) -> bool {
        !matches!(self, Self::Number | Self::Text)
    }
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        let program = Program { ops: Vec::new(), literals: Vec::new(), metrics: Vec::new() };
        let lexer = Lexer::new(text);
        Self { text, lexer, pending: Vec::new(), values: Vec::new(), program, nodes: 0, depth: 0 }
    }

    fn run(mut self) -> Result<Program, Flaw> {
        if self.text.len() > TEXT_BYTES_MAX {
            let message = format!("the expression has {} bytes, more than {TEXT_BYTES_MAX}", self.text.len());
            return Err(Flaw::limit(0, message, "make several rules of it"));
        }
        let mut wants_operand = true;
        loop {
            let (at, token) = self.lexer.next()?;
            if wants_operand {
                wants_operand = self.operand(at, token)?;
            } else if token == Token::End {
                return self.finish();
            } else {
                wants_operand = self.operator(at, token)?;
            }
        }
    }

    /// A token where a value has to begin. True if a value still has to follow.
    fn operand(&mut self, at: usize, token: Token<'a>) -> Result<bool, Flaw> {
        match token {
            Token::Open => return self.open(Pending::Paren, at),
            Token::Not => return self.open(Pending::Not, at),
            Token::Minus => self.negative(at)?,
            Token::Int(_) | Token::Uint(_) | Token::Float(_) => self.number(at, &token, false)?,
            Token::Text(text) => self.literal(at, Kind::Text, Value::Text(text))?,
            Token::Bool(value) => self.literal(at, Kind::Bool, Value::Bool(value))?,
            Token::Name(name) => self.name(at, name)?,
            Token::Null => {
                let mend = "leave it out: a metric that is null or missing is unknown and neither fires nor resolves";
                return Err(Flaw::meaning(at, "null is unknown, so a comparison with it decides nothing", mend));
            }
            other => return Err(no_operand(at, &other)),
        }
        Ok(false)
    }

    /// A token where an operator has to follow. True if a value has to follow.
    fn operator(&mut self, at: usize, token: Token<'a>) -> Result<bool, Flaw> {
        let operator = match token {
            Token::Or => Pending::Or,
            Token::And => Pending::And,
            Token::Compare(comparison) => Pending::Compare(comparison),
            Token::Close => return self.close(at).map(|()| false),
            other => return Err(no_operator(at, &other)),
        };
        self.count(at)?;
        self.reduce(operator.strength())?;
        self.pending.push((operator, at));
        Ok(true)
    }

    fn open(&mut self, pending: Pending, at: usize) -> Result<bool, Flaw> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} parentheses and ! are open here");
            return Err(Flaw::limit(at, message, "take out what is not needed, or make several rules of it"));
        }
        if pending == Pending::Not {
            self.count(at)?;
        }
        self.pending.push((pending, at));
        Ok(true)
    }

    fn close(&mut self, at: usize) -> Result<(), Flaw> {
        self.reduce(Pending::Or.strength())?;
        match self.pending.pop() {
            Some((Pending::Paren, _)) => {
                self.depth -= 1;
                Ok(())
            }
            _ => Err(Flaw::syntax(at, "this parenthesis was never opened", "take it out, or open it before")),
        }
    }

    fn finish(mut self) -> Result<Program, Flaw> {
        self.reduce(Pending::Or.strength())?;
        if let Some((_, at)) = self.pending.last() {
            return Err(Flaw::syntax(*at, "this parenthesis is never closed", "close it"));
        }
        let Some(entry) = self.values.pop() else {
            return Err(Flaw::syntax(0, "the expression is empty", "write a condition such as temperature > 80"));
        };
        check_condition(entry, "an alert")?;
        if entry.source != Source::Stack {
            self.program.ops.push(Op::Test(entry.source));
        }
        Ok(self.program)
    }

    /// Applies the pending operators that bind at least as tight as `strength`.
    fn reduce(&mut self, strength: u8) -> Result<(), Flaw> {
        while let Some(&(pending, at)) = self.pending.last()
            && pending.strength() >= strength
        {
            self.pending.pop();
            self.apply(pending, at)?;
        }
        Ok(())
    }

    fn apply(&mut self, pending: Pending, at: usize) -> Result<(), Flaw> {
        let right = self.take(at)?;
        let (op, start) = if pending == Pending::Not {
            self.depth -= 1;
            check_condition(right, pending.sign())?;
            (Op::Not(right.source), at)
        } else {
            let left = self.take(at)?;
            (join(pending, left, right, at)?, left.at)
        };
        self.program.ops.push(op);
        self.values.push(Entry { source: Source::Stack, kind: Kind::Outcome, at: start });
        Ok(())
    }

    fn take(&mut self, at: usize) -> Result<Entry, Flaw> {
        self.values.pop().ok_or_else(|| Flaw::syntax(at, "a value is missing beside this operator", "write it"))
    }

    fn count(&mut self, at: usize) -> Result<(), Flaw> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let message = format!("the expression has more than {NODES_MAX} values and operators");
            return Err(Flaw::limit(at, message, "make several rules of it"));
        }
        Ok(())
    }

    /// A minus, or several, in front of a number.
    fn negative(&mut self, at: usize) -> Result<(), Flaw> {
        let mut is_negative = true;
        loop {
            match self.lexer.next()? {
                (_, Token::Minus) => is_negative = !is_negative,
                (_, number @ (Token::Int(_) | Token::Uint(_) | Token::Float(_))) => {
                    return self.number(at, &number, is_negative);
                }
                _ => {
                    let mend = "put it in front of a number only, and turn the comparison round: -t > 5 is t < -5";
                    return Err(Flaw::unsupported(at, "`-` in front of anything but a number (arithmetic)", mend));
                }
            }
        }
    }

    fn number(&mut self, at: usize, token: &Token<'a>, is_negative: bool) -> Result<(), Flaw> {
        let value = match token {
            Token::Int(n) if is_negative => 0_i64.checked_sub_unsigned(*n).map(Value::I64),
            Token::Int(n) => i64::try_from(*n).ok().map(Value::I64),
            Token::Uint(n) if !is_negative => Some(Value::U64(*n)),
            Token::Float(n) => Some(Value::F64(if is_negative { -n } else { *n })),
            _ => None,
        };
        let misfit = || {
            let mend = "with suffix u it reaches up to 18446744073709551615, never below zero; beyond, write a float";
            Flaw::syntax(at, "this number does not fit into its type", mend)
        };
        self.literal(at, Kind::Number, value.ok_or_else(misfit)?)
    }

    fn literal(&mut self, at: usize, kind: Kind, value: Value) -> Result<(), Flaw> {
        self.count(at)?;
        let slot = self.program.literals.len() as u16;
        self.program.literals.push(value);
        self.values.push(Entry { source: Source::Literal(slot), kind, at });
        Ok(())
    }

    fn name(&mut self, at: usize, name: Cow<'a, str>) -> Result<(), Flaw> {
        self.count(at)?;
        let name: Arc<str> = if name == ALL_METRICS { self.index_form()? } else { name.into() };
        let known = self.program.metrics.iter().position(|metric| *metric == name);
        let slot = known.unwrap_or_else(|| {
            self.program.metrics.push(name);
            self.program.metrics.len() - 1
        });
        self.values.push(Entry { source: Source::Metric(slot as u16), kind: Kind::Any, at });
        Ok(())
    }

    /// `metric["any name"]`, or plain `metric`.
    fn index_form(&mut self) -> Result<Arc<str>, Flaw> {
        let mut ahead = self.lexer;
        if !matches!(ahead.next(), Ok((_, Token::OpenBracket))) {
            return Ok(ALL_METRICS.into());
        }
        let (at, token) = ahead.next()?;
        let closed = matches!(ahead.next(), Ok((_, Token::CloseBracket)));
        self.lexer = ahead;
        match token {
            Token::Text(name) if closed && !name.is_empty() => Ok(name),
            _ => Err(Flaw::syntax(at, "the name of a metric belongs here", "write metric[\"name\"]")),
        }
    }
}

/// The step of an operator with two sides.
fn join(pending: Pending, left: Entry, right: Entry, at: usize) -> Result<Op, Flaw> {
    if let Pending::Compare(comparison) = pending {
        check_comparison(comparison, left, right, at)?;
        return Ok(Op::Compare(comparison, left.source, right.source));
    }
    check_condition(left, pending.sign())?;
    check_condition(right, pending.sign())?;
    Ok(if pending == Pending::And { Op::And(left.source, right.source) } else { Op::Or(left.source, right.source) })
}

/// Refuses what can never be a condition.
fn check_condition(entry: Entry, of: &str) -> Result<(), Flaw> {
    if entry.kind.may_be_condition() {
        return Ok(());
    }
    let message = format!("{} is no condition for {of}", entry.kind.name());
    Err(Flaw::meaning(entry.at, message, "compare it with something"))
}

/// Refuses comparisons whose outcome would always be unknown.
fn check_comparison(comparison: Comparison, left: Entry, right: Entry, at: usize) -> Result<(), Flaw> {
    if comparison.is_ordering() && (left.kind == Kind::Outcome || right.kind == Kind::Outcome) {
        let mend = "write 1 < t && t < 5 for a range";
        return Err(Flaw::unsupported(at, "a comparison of a comparison", mend));
    }
    if left.kind.may_equal(right.kind) {
        return Ok(());
    }
    let message = format!("{} never compares with {}", left.kind.name(), right.kind.name());
    Err(Flaw::meaning(at, message, "give both sides the same type: text in quotes, numbers without"))
}

fn no_operand(at: usize, token: &Token<'_>) -> Flaw {
    match token {
        Token::Other('{') => Flaw::unsupported(at, "a map", "compare with numbers, texts and booleans"),
        Token::OpenBracket => Flaw::unsupported(at, "a list", "write m == \"A\" || m == \"B\""),
        Token::Other('.') => Flaw::syntax(at, "a name or a number does not start with this dot", "take the dot out"),
        Token::Other('+') => Flaw::unsupported(at, "`+` (arithmetic)", "write the number without it"),
        Token::End if at == 0 => {
            Flaw::syntax(at, "the expression is empty", "write a condition such as temperature > 80")
        }
        _ => Flaw::syntax(at, "a value is missing here", "write a metric, a number, a \"text\", true or false"),
    }
}

fn no_operator(at: usize, token: &Token<'_>) -> Flaw {
    let arithmetic = "compare the metric itself; a metric with such a sign in its name is metric[\"a-b\"]";
    match token {
        Token::Other(sign @ ('+' | '*' | '/' | '%')) => {
            Flaw::unsupported(at, format_args!("`{sign}` (arithmetic)"), arithmetic)
        }
        Token::Minus => Flaw::unsupported(at, "`-` (arithmetic)", arithmetic),
        Token::In => Flaw::unsupported(at, "`in` (membership)", "write m == \"A\" || m == \"B\""),
        Token::Open => Flaw::unsupported(at, "a call of a function", "compare metrics with && || ! only"),
        Token::Other('?' | ':') => Flaw::unsupported(at, "`? :` (choice)", "write (a && b) || (!a && c)"),
        Token::OpenBracket => Flaw::unsupported(at, "`[` (index)", "a metric of an odd name is metric[\"name\"]"),
        Token::Other('{') => Flaw::unsupported(at, "`{` (message)", "compare with numbers, texts and booleans"),
        Token::Other('.') => {
            Flaw::unsupported(at, "`.` (field of a value)", "a metric of an odd name is metric[\"a.0\"]")
        }
        Token::Other(',') => Flaw::syntax(at, "a comma belongs to no expression", "write 21.5 with a point"),
        Token::Name(name) if matches!(&**name, "and" | "AND") => Flaw::syntax(at, "`and` is no operator", "write &&"),
        Token::Name(name) if matches!(&**name, "or" | "OR") => Flaw::syntax(at, "`or` is no operator", "write ||"),
        _ => Flaw::syntax(at, "an operator is missing before this", "join two conditions with && or ||"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "tests may panic")]
mod tests {
    use super::*;
    use crate::rules::error::FaultKind;

    fn fault(text: &str) -> Fault {
        parse(text).expect_err(text)
    }

    #[test]
    fn a_comparison_is_one_step_over_slots() {
        let program = parse("am2301.temperature > -80").unwrap();
        assert_eq!(program.ops, [Op::Compare(Comparison::Greater, Source::Metric(0), Source::Literal(0))]);
        assert_eq!(program.literals, [Value::I64(-80)]);
        let bare = parse("(((running)))").unwrap();
        assert_eq!(bare.ops, [Op::Test(Source::Metric(0))]);
    }

    #[test]
    fn numbers_must_fit_their_type() {
        assert_eq!(parse("t > -9223372036854775808").unwrap().literals, [Value::I64(i64::MIN)]);
        assert_eq!(parse("t > 9223372036854775807").unwrap().literals, [Value::I64(i64::MAX)]);
        assert_eq!(parse("t > 18446744073709551615u").unwrap().literals, [Value::U64(u64::MAX)]);
        for text in ["t > 9223372036854775808", "t > -9223372036854775809", "t > -5u"] {
            assert_eq!((fault(text).kind, fault(text).column), (FaultKind::Syntax, 5), "{text}");
        }
    }

    #[test]
    fn the_rest_of_cel_is_refused_by_name_and_place() {
        for (text, column, part) in [
            ("t + 5 > 80", 3, "`+`"),
            ("t > 80 - 5", 8, "`-`"),
            ("t-1 > 80", 2, "`-`"),
            ("t * 2 > 1", 3, "`*`"),
            ("t / 2 > 1", 3, "`/`"),
            ("t % 2 == 1", 3, "`%`"),
            ("-t > 5", 1, "`-`"),
            ("-(5) < t", 1, "`-`"),
            ("+5 < t", 1, "`+`"),
            ("mode in [\"A\"]", 6, "`in`"),
            ("mode == [\"A\"]", 9, "a list"),
            ("mode == {}", 9, "a map"),
            ("size(mode) > 1", 5, "a call"),
            ("m.matches(\"x\")", 10, "a call"),
            ("a ? b : c", 3, "`? :`"),
            ("a[0] > 1", 2, "`[`"),
            ("metric[\"a\"][0] > 1", 12, "`[`"),
            ("\"a\".b > 1", 4, "`.`"),
            ("T{} == t", 2, "`{`"),
            ("t & 4 == 4", 3, "`&`"),
            ("t == b'x'", 6, "a string"),
            ("1 < t < 5", 7, "a comparison"),
            ("(a > 1) < (b > 2)", 9, "a comparison"),
        ] {
            let fault = fault(text);
            assert_eq!((fault.kind, fault.column), (FaultKind::Unsupported, column), "{text}: {fault}");
            assert!(fault.message.contains(part) && fault.message.ends_with("is not supported"), "{text}: {fault}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused_with_its_place() {
        for (text, column) in [
            ("", 1),
            ("   ", 4),
            ("t >", 4),
            ("t > && on", 5),
            ("> 5", 1),
            ("t 5", 3),
            ("on off", 4),
            ("on and off", 4),
            ("(t > 5", 1),
            ("t > 5)", 6),
            ("()", 2),
            ("t > (5", 5),
            ("a !b", 3),
            ("!", 2),
            ("a && ", 6),
            ("t > 21,5", 7),
            ("metric[5] > 1", 8),
            ("metric[\"\"] > 1", 8),
            ("metric[\"a\" > 1", 8),
            (".t > 5", 1),
            ("t = 5", 3),
        ] {
            let fault = fault(text);
            assert_eq!((fault.kind, fault.column), (FaultKind::Syntax, column), "{text:?}: {fault}");
        }
    }

    #[test]
    fn what_could_never_be_true_is_refused() {
        for (text, column, part) in [
            ("5", 1, "no condition for an alert"),
            ("\"hot\"", 1, "no condition for an alert"),
            ("on && 5", 7, "no condition for &&"),
            ("'x' || on", 1, "no condition for ||"),
            ("!5 == t", 2, "no condition for !"),
            ("5 == \"5\"", 3, "a number never compares with a text"),
            ("(t > 5) == 5", 9, "a condition never compares with a number"),
            ("t == null", 6, "null is unknown"),
        ] {
            let fault = fault(text);
            assert_eq!((fault.kind, fault.column), (FaultKind::Meaning, column), "{text}: {fault}");
            assert!(fault.message.contains(part), "{text}: {fault}");
        }
    }

    #[test]
    fn every_fault_ends_its_first_line_with_a_mend() {
        let shown = fault("running &&\ntemperature + 5 > 80").to_string();
        let mend = "compare the metric itself; a metric with such a sign in its name is metric[\"a-b\"]";
        let first = format!("`+` (arithmetic) is not supported (line 2, column 13); {mend}");
        assert_eq!(shown, format!("{first}\n  temperature + 5 > 80\n              ^"));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |open: &str, n: usize, close: &str| format!("{}on{}", open.repeat(n), close.repeat(n));
        assert!(parse(&nested("(", DEPTH_MAX, ")")).is_ok());
        assert!(parse(&nested("!", DEPTH_MAX, "")).is_ok());
        assert!(parse(&nested("!(", DEPTH_MAX / 2, ")")).is_ok());
        for text in
            [nested("(", DEPTH_MAX + 1, ")"), nested("!", DEPTH_MAX + 1, ""), nested("(", 2000, ")"), "(".repeat(4000)]
        {
            assert_eq!((fault(&text).kind, fault(&text).column), (FaultKind::Limit, DEPTH_MAX + 1), "{}", text.len());
        }
        // Depth is what is open at a time, not a sum.
        assert!(parse(&vec!["!(!on)"; 40].join(" && ")).is_ok());
    }

    #[test]
    fn ten_thousand_parentheses_are_refused_by_their_length() {
        let text = format!("{}on{}", "(".repeat(10_000), ")".repeat(10_000));
        assert_eq!(fault(&text).kind, FaultKind::Limit);
        assert!(fault(&text).message.contains("20002 bytes"));
    }

    #[test]
    fn length_and_parts_are_bounded() {
        assert_eq!(fault(&"1<2 && ".repeat(2000)).kind, FaultKind::Limit, "by its length");
        let terms = |n: usize| vec!["1<t"; n].join("&&");
        assert!(parse(&terms(64)).is_ok(), "64 * 4 - 1 parts");
        assert!(fault(&terms(65)).message.contains("256"));
        let padded = |n: usize| format!("on{}", " ".repeat(n));
        assert!(parse(&padded(TEXT_BYTES_MAX - 2)).is_ok());
        assert_eq!(fault(&padded(TEXT_BYTES_MAX - 1)).kind, FaultKind::Limit);
    }

    #[test]
    fn the_deepest_program_fits_its_stack() {
        let level = "on || on == on && on == (";
        let left = "(on || on) || (on || on) && (on || on) == (";
        for level in [level, left] {
            // The inner parentheses of a level need a place of their own.
            let n = DEPTH_MAX.min((NODES_MAX - 10) / 14);
            let text = format!("{}on{}", level.repeat(n), ")".repeat(n));
            let twin = crate::rules::fixtures::Twin::new().with("on", Value::Bool(true));
            assert_eq!(parse(&text).expect(&text).evaluate(&twin).truth, crate::rules::truth::Truth::True);
        }
    }
}
