//! Calculations of whole numbers with + - * and brackets, as answers write them: `(3+7)*7`.

/// Most characters and nested brackets.
const LONGEST: usize = 200;
const DEEPEST: usize = 20;

/// A calculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Number(i64),
    /// Terms, and whether each is subtracted.
    Sum(Vec<(bool, Expression)>),
    Product(Vec<Expression>),
}

impl Expression {
    /// Reads a whole text. `None` if it is anything else, or too long.
    pub fn parse(text: &str) -> Option<Self> {
        let compact: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).take(LONGEST + 1).collect();
        let mut parser = Parser { text: &compact, at: 0 };
        let whole = parser.sum(0)?;
        (parser.at == compact.len() && compact.len() <= LONGEST).then_some(whole)
    }

    /// `None` if it is too large.
    pub fn value(&self) -> Option<i64> {
        match self {
            Self::Number(n) => Some(*n),
            Self::Sum(terms) => terms.iter().try_fold(0i64, |sum, (minus, term)| {
                let term = term.value()?;
                if *minus { sum.checked_sub(term) } else { sum.checked_add(term) }
            }),
            Self::Product(factors) => {
                factors.iter().try_fold(1i64, |product, factor| product.checked_mul(factor.value()?))
            }
        }
    }

    /// Its numbers, in order.
    pub fn numbers(&self) -> Vec<i64> {
        match self {
            Self::Number(n) => vec![*n],
            Self::Sum(terms) => terms.iter().flat_map(|(_, term)| term.numbers()).collect(),
            Self::Product(factors) => factors.iter().flat_map(Self::numbers).collect(),
        }
    }

    /// A text that two calculations share if they differ in the order of terms and factors only.
    pub fn unordered(&self) -> String {
        let sorted = |mut parts: Vec<String>, between: &str| {
            parts.sort_unstable();
            format!("({})", parts.join(between))
        };
        match self {
            Self::Number(n) => n.to_string(),
            Self::Sum(terms) => {
                let signed =
                    |(minus, term): &(bool, Self)| format!("{}{}", if *minus { '-' } else { '+' }, term.unordered());
                sorted(terms.iter().map(signed).collect(), "")
            }
            Self::Product(factors) => sorted(factors.iter().map(Self::unordered).collect(), "*"),
        }
    }
}

struct Parser<'a> {
    text: &'a [char],
    at: usize,
}

impl Parser<'_> {
    fn next_is(&self, sign: char) -> bool {
        self.text.get(self.at) == Some(&sign)
    }

    fn sum(&mut self, depth: usize) -> Option<Expression> {
        let mut terms = vec![(false, self.product(depth)?)];
        while self.next_is('+') || self.next_is('-') {
            let minus = self.next_is('-');
            self.at += 1;
            terms.push((minus, self.product(depth)?));
        }
        Some(if terms.len() > 1 { Expression::Sum(terms) } else { terms.remove(0).1 })
    }

    fn product(&mut self, depth: usize) -> Option<Expression> {
        let mut factors = vec![self.factor(depth)?];
        while self.next_is('*') {
            self.at += 1;
            factors.push(self.factor(depth)?);
        }
        Some(if factors.len() > 1 { Expression::Product(factors) } else { factors.remove(0) })
    }

    fn factor(&mut self, depth: usize) -> Option<Expression> {
        if self.next_is('(') && depth < DEEPEST {
            self.at += 1;
            let inner = self.sum(depth + 1)?;
            let closed = self.next_is(')');
            self.at += 1;
            return closed.then_some(inner);
        }
        let digits: String =
            self.text[self.at.min(self.text.len())..].iter().take_while(|c| c.is_ascii_digit()).collect();
        self.at += digits.len();
        digits.parse().ok().map(Expression::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calculations_have_a_value_whatever_their_order() {
        let read = |text: &str| Expression::parse(text).map(|e| (e.value(), e.numbers()));
        assert_eq!(read("8 * 24 - 6"), Some((Some(186), vec![8, 24, 6])));
        assert_eq!(read("2+(3+7)*7-1"), Some((Some(71), vec![2, 3, 7, 7, 1])));
        assert_eq!(read("9223372036854775807+1"), Some((None, vec![i64::MAX, 1])));
        for text in
            ["", "3+", "-3", "(3", "3)", "3 apples", "()", "99999999999999999999", &"1+".repeat(200), &"(".repeat(50)]
        {
            assert_eq!(read(text), None, "{text}");
        }
        let same =
            |a: &str, b: &str| Expression::parse(a).unwrap().unordered() == Expression::parse(b).unwrap().unordered();
        assert!(same("8*24-6", "24*8-6") && same("7*(3+7)+1", "1 + (7+3)*7") && same("9-2-3", "9-3-2"));
        assert!(!same("8-6", "6-8") && !same("2*3+4", "2+3*4") && !same("24*8-6", "24*6-8"));
    }
}
