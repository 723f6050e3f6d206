//! Calls, windows and ORDER BY of a query as parts of a statement of SQLite.

use sqlparser::ast::{
    DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause, FunctionArguments,
    OrderByExpr, OrderBySort, Spanned, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowSpec, WindowType,
};
use sqlparser::tokenizer::Location;

use super::render::{Renderer, Written, joined};

impl Renderer<'_> {
    pub(super) fn function(self, function: &Function, at: Location) -> Written {
        let [name] = &function.name.0[..] else { return Err(self.unknown("a function of a schema", at)) };
        let name = name.as_ident().ok_or_else(|| self.unknown("this call", at))?;
        // The rewriter has named it: no name of a client comes here.
        if !name.value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            return Err(self.unknown("this call", at));
        }
        let is_other = function.uses_odbc_syntax
            || !matches!(function.parameters, FunctionArguments::None)
            || !function.within_group.is_empty()
            || function.null_treatment.is_some();
        if is_other {
            return Err(self.unknown("this call", at));
        }
        let mut made = format!("{}(", name.value);
        match &function.args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(_) => return Err(self.unknown("this call", at)),
            FunctionArguments::List(list) => {
                if list.duplicate_treatment == Some(DuplicateTreatment::Distinct) {
                    made += "DISTINCT ";
                }
                let argument = |argument: &FunctionArg| match argument {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => self.expr(expr),
                    FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => Ok("*".into()),
                    _ => Err(self.unknown("an argument like this", at)),
                };
                made += &joined(list.args.iter().map(argument), ", ")?;
                for clause in &list.clauses {
                    match clause {
                        FunctionArgumentClause::OrderBy(order) => made += &format!(" ORDER BY {}", self.order(order)?),
                        _ => return Err(self.unknown("this call", at)),
                    }
                }
            }
        }
        made += ")";
        if let Some(filter) = &function.filter {
            made += &format!(" FILTER (WHERE {})", self.expr(filter)?);
        }
        match &function.over {
            None => {}
            Some(WindowType::NamedWindow(name)) => made += &format!(" OVER {}", self.ident(name)?),
            Some(WindowType::WindowSpec(window)) => made += &format!(" OVER ({})", self.window(window)?),
        }
        Ok(made)
    }

    pub(super) fn window(self, window: &WindowSpec) -> Written {
        let mut parts = Vec::new();
        if let Some(name) = &window.window_name {
            parts.push(self.ident(name)?);
        }
        if !window.partition_by.is_empty() {
            parts.push(format!("PARTITION BY {}", self.list(&window.partition_by)?));
        }
        if !window.order_by.is_empty() {
            parts.push(format!("ORDER BY {}", self.order(&window.order_by)?));
        }
        if let Some(WindowFrame { units, start_bound, end_bound }) = &window.window_frame {
            let units = match units {
                WindowFrameUnits::Rows => "ROWS",
                WindowFrameUnits::Range => "RANGE",
                WindowFrameUnits::Groups => "GROUPS",
            };
            let begin = self.frame_bound(start_bound)?;
            parts.push(match end_bound {
                Some(end) => format!("{units} BETWEEN {begin} AND {}", self.frame_bound(end)?),
                None => format!("{units} {begin}"),
            });
        }
        Ok(parts.join(" "))
    }

    fn frame_bound(self, bound: &WindowFrameBound) -> Written {
        let side = |count: &Option<Box<Expr>>, word: &str| match count {
            Some(count) => Ok(format!("{} {word}", self.expr(count)?)),
            None => Ok(format!("UNBOUNDED {word}")),
        };
        match bound {
            WindowFrameBound::CurrentRow => Ok("CURRENT ROW".into()),
            WindowFrameBound::Preceding(count) => side(count, "PRECEDING"),
            WindowFrameBound::Following(count) => side(count, "FOLLOWING"),
        }
    }

    pub(super) fn order(self, items: &[OrderByExpr]) -> Written {
        let one = |item: &OrderByExpr| {
            let at = item.expr.span().start;
            if item.with_fill.is_some() {
                return Err(self.unknown("WITH FILL", at));
            }
            let direction = match &item.options.sort {
                None => "",
                Some(OrderBySort::Asc) => " ASC",
                Some(OrderBySort::Desc) => " DESC",
                Some(OrderBySort::Using(_)) => return Err(self.unknown("USING", at)),
            };
            let nulls = match item.options.nulls_first {
                None => "",
                Some(true) => " NULLS FIRST",
                Some(false) => " NULLS LAST",
            };
            Ok(format!("{}{direction}{nulls}", self.expr(&item.expr)?))
        };
        joined(items.iter().map(one), ", ")
    }
}
