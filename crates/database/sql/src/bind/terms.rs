//! A WHERE as the conditions that AND joins: which of them say something of a column of the table alone.

use super::Binder;
use crate::syntax::{BinaryOp, Comparison, Expr as Written, ExprKind as W, Name, Place};

/// A condition `column op value`, whose value is known before the row is read.
pub(super) struct Condition<'w> {
    pub(super) column: usize,
    pub(super) op: Comparison,
    pub(super) value: &'w Written,
    pub(super) place: Place,
    /// The column as it is written.
    own: &'w Written,
}

/// The values that a column is one of.
pub(super) enum Elements<'w> {
    Written(Vec<&'w Written>),
    /// `$n`, which is an array.
    Parameter(u16),
}

/// A condition `column IN (...)`, whose values are constants and parameters.
pub(super) struct Listed<'w> {
    pub(super) column: usize,
    pub(super) elements: Elements<'w>,
    written: &'w Written,
}

/// One of the conditions that AND joins.
pub(super) enum Term<'w> {
    Condition(Condition<'w>),
    Listed(Listed<'w>),
    /// Any other.
    Other(&'w Written),
}

impl<'w> Term<'w> {
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Condition(condition) => condition.place,
            Self::Listed(listed) => listed.written.place,
            Self::Other(written) => written.place,
        }
    }

    /// The column of which it says which value, or which few values, it has.
    pub(super) fn pins(&self) -> Option<usize> {
        match self {
            Self::Condition(Condition { column, op: Comparison::Eq, .. }) => Some(*column),
            Self::Listed(listed) => Some(listed.column),
            _ => None,
        }
    }

    /// The condition as it is written.
    pub(super) fn written(self) -> Written {
        match self {
            Self::Condition(Condition { op, value, own, place, .. }) => {
                let kind = W::Binary(BinaryOp::Compare(op), Box::new(own.clone()), Box::new(value.clone()));
                Written { kind, place }
            }
            Self::Listed(Listed { written, .. }) | Self::Other(written) => written.clone(),
        }
    }
}

/// Whether a value is known before the statement runs, or comes as a parameter.
fn is_plain(written: &Written) -> bool {
    match &written.kind {
        W::Number(_)
        | W::Text(_)
        | W::Bytes(_)
        | W::Null
        | W::Bool(_)
        | W::Timestamp(_)
        | W::Placeholder(_)
        | W::TextPlaceholder(_) => true,
        W::Call(name, arguments) => arguments.is_empty() && crate::single::is_clock(&name.text),
        W::Negate(inner) | W::Cast(inner, _) => {
            is_plain(inner) && !matches!(inner.kind, W::Placeholder(_) | W::TextPlaceholder(_) | W::Null | W::Call(..))
        }
        _ => false,
    }
}

impl Binder<'_> {
    /// Returns the conditions of a WHERE on a table, whose name in the statement is that of [`Self::row`].
    pub(super) fn terms<'w>(&self, table: usize, filter: Option<&'w Written>) -> Vec<Term<'w>> {
        let mut terms = Vec::new();
        let mut rest: Vec<&Written> = filter.into_iter().collect();
        while let Some(written) = rest.pop() {
            match &written.kind {
                W::Binary(BinaryOp::And, a, b) => rest.extend([&**b, &**a]),
                W::Between(value, low, high) => {
                    let bounds = [(Comparison::Ge, &**low), (Comparison::Le, &**high)];
                    let both = bounds.map(|(op, bound)| self.condition_on(table, op, (value, bound), written.place));
                    match both {
                        [Some(low), Some(high)] => terms.extend([low, high].map(Term::Condition)),
                        _ => terms.push(Term::Other(written)),
                    }
                }
                W::Binary(BinaryOp::Compare(op), a, b) => {
                    terms.push(match self.condition_on(table, *op, (a, b), written.place) {
                        Some(condition) => Term::Condition(condition),
                        None => Term::Other(written),
                    });
                }
                _ => terms.push(self.listed(table, written).map_or(Term::Other(written), Term::Listed)),
            }
        }
        terms
    }

    /// The column of the table that an expression is.
    fn own_column(&self, table: usize, written: &Written) -> Option<usize> {
        let W::Name(qualifier, name) = &written.kind else { return None };
        self.column_named(table, qualifier.as_ref(), name)
    }

    fn column_named(&self, table: usize, qualifier: Option<&Name>, name: &Name) -> Option<usize> {
        let is_own = match qualifier {
            None => true,
            Some(qualifier) => self.row.as_ref().is_some_and(|(_, alias)| *alias == qualifier.text),
        };
        self.table(table).schema.column(&name.text).map(|(column, _)| column).filter(|_| is_own)
    }

    /// Whether an expression reads the row.
    fn reads_row(&self, table: usize, written: &Written) -> bool {
        self.own_column(table, written).is_some() || written.parts().into_iter().any(|part| self.reads_row(table, part))
    }

    /// `a op b` as a condition on a column, if one side is one and the other does not read the row.
    fn condition_on<'w>(
        &self,
        table: usize,
        op: Comparison,
        (a, b): (&'w Written, &'w Written),
        place: Place,
    ) -> Option<Condition<'w>> {
        let (own, op, value) = match (self.own_column(table, a), self.own_column(table, b)) {
            (Some(_), None) => (a, op, b),
            (None, Some(_)) => (b, op.flip(), a),
            _ => return None,
        };
        let column = self.own_column(table, own).filter(|_| !self.reads_row(table, value))?;
        Some(Condition { column, op, value, place, own })
    }

    /// `column IN (...)`, also as `column = ANY(...)` and as `column = a OR column = b`.
    fn listed<'w>(&self, table: usize, written: &'w Written) -> Option<Listed<'w>> {
        let (column, elements) = match &written.kind {
            W::AnyOf(value, number) => (self.own_column(table, value)?, Elements::Parameter(*number)),
            W::In(value, list) => (self.own_column(table, value)?, Elements::Written(list.iter().collect())),
            W::Binary(BinaryOp::Or, ..) => {
                let (mut column, mut values) = (None, Vec::new());
                let mut rest = vec![written];
                while let Some(one) = rest.pop() {
                    match &one.kind {
                        W::Binary(BinaryOp::Or, a, b) => rest.extend([&**b, &**a]),
                        W::Binary(BinaryOp::Compare(Comparison::Eq), a, b) => {
                            let condition = self.condition_on(table, Comparison::Eq, (a, b), one.place)?;
                            if *column.get_or_insert(condition.column) != condition.column {
                                return None;
                            }
                            values.push(condition.value);
                        }
                        _ => return None,
                    }
                }
                (column?, Elements::Written(values))
            }
            _ => return None,
        };
        let is_known = match &elements {
            Elements::Written(values) => values.iter().all(|value| is_plain(value)),
            Elements::Parameter(_) => true,
        };
        (is_known && self.lifted.is_some()).then_some(Listed { column, elements, written })
    }
}
