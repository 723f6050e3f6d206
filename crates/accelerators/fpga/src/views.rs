//! Column groups: the processor detects conflicts per group of columns, not per row.
//!
//! Decision words are per key and *table number*. Here a table gets a number for each group of columns that no DB
//! instruction of any procedure uses together with another group: TPC-C's Payment adds to `ytd` of a district and
//! NewOrder to its `next_o`, so they are two tables as far as conflicts go, of the same rows. Of what nobody writes
//! nothing has to be judged at all: NewOrder reads a warehouse's `tax` while Payments change its `ytd`.
//!
//! That is sound because every byte of a row that any transaction writes has one number, under which everybody who
//! uses it asks; transactions are then ordered by time for each group of columns instead of each row. It is done for
//! chains of rows that no procedure changes: an INSERT, a REMOVE or a SCAN is about whole rows. When a procedure is
//! added everything is decided anew, which no transaction sees, because none is running.

use std::collections::BTreeMap;
use std::ops::Range;

use lockwork_procedure::access::{Operation, RowUse, row_uses};
use lockwork_procedure::verified::Verified;

/// Another number of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The table.
    pub table: u16,
    /// Whether accesses are judged; else nobody writes what this number is for.
    pub judged: bool,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    /// Numbers from that of the last table on.
    pub views: Vec<View>,
    tables: usize,
    /// By procedure and instruction: the view, where it is not the table itself.
    chosen: BTreeMap<(usize, u32), usize>,
}

/// A DB instruction: procedure, and what its row is used for.
struct Site {
    procedure: usize,
    row: RowUse,
}

impl Views {
    /// Decides for all procedures and as many tables as `divisible` has, which says of each whether it is chains of
    /// rows, and not replicated. There are at most `numbers` table numbers: where they do not suffice, a table keeps
    /// its one.
    #[must_use]
    pub fn of<'a>(procedures: impl Iterator<Item = &'a Verified>, divisible: &[bool], numbers: usize) -> Self {
        let mut views = Self { tables: divisible.len(), ..Self::default() };
        let mut sites: Vec<Vec<Site>> = divisible.iter().map(|_| Vec::new()).collect();
        for (procedure, verified) in procedures.enumerate() {
            for row in row_uses(verified) {
                let table = verified.tables()[usize::from(row.slot)].id;
                sites[usize::from(table)].push(Site { procedure, row });
            }
        }
        for (table, (sites, &divisible)) in sites.iter().zip(divisible).enumerate() {
            let steady = sites.iter().all(|site| matches!(site.row.operation, Operation::Search | Operation::Update));
            if steady && divisible {
                views.divide(table as u16, sites, numbers);
            }
        }
        views
    }

    /// The number by which an instruction calls its table.
    #[must_use]
    pub fn number(&self, procedure: usize, pc: u32, table: u16) -> u16 {
        self.chosen.get(&(procedure, pc)).map_or(table, |view| (self.tables + view) as u16)
    }

    /// Gives every group of a table's instructions a number of its own.
    fn divide(&mut self, table: u16, sites: &[Site], numbers: usize) {
        let groups = groups(sites);
        let mut judged: Vec<usize> = groups.iter().flatten().copied().collect();
        judged.sort_unstable();
        judged.dedup();
        let unjudged = usize::from(groups.contains(&None));
        // The first group has the table's own number.
        let more = judged.len().saturating_sub(1) + unjudged;
        if self.tables + self.views.len() + more > numbers {
            return;
        }
        let first = self.views.len();
        self.views.extend(judged.iter().skip(1).map(|_| View { table, judged: true }));
        if unjudged == 1 {
            self.views.push(View { table, judged: false });
        }
        for (site, group) in sites.iter().zip(&groups) {
            let view = match group {
                None => Some(self.views.len() - 1),
                Some(group) => {
                    let place = judged.iter().position(|known| known == group).expect("a group");
                    place.checked_sub(1).map(|place| first + place)
                }
            };
            if let Some(view) = view {
                self.chosen.insert((site.procedure, site.row.pc), view);
            }
        }
    }
}

/// For each instruction the number of the first one that it shares a group of columns with; `None` if it uses nothing
/// that anybody writes.
fn groups(sites: &[Site]) -> Vec<Option<usize>> {
    let spans = |site: &Site| site.row.read.iter().chain(&site.row.write).cloned().collect::<Vec<Range<u32>>>();
    let end = sites.iter().flat_map(spans).map(|span| span.end).max().unwrap_or(0) as usize;
    let mut written = vec![false; end];
    for span in sites.iter().flat_map(|site| &site.row.write) {
        written[span.start as usize..span.end as usize].fill(true);
    }
    // Whom each byte was met with first, and the group of each instruction, by way of an earlier one.
    let mut users = vec![None; end];
    let mut leaders: Vec<usize> = (0..sites.len()).collect();
    let leader = |leaders: &[usize], mut at: usize| {
        while leaders[at] != at {
            at = leaders[at];
        }
        at
    };
    let mut judged = vec![false; sites.len()];
    for (at, site) in sites.iter().enumerate() {
        for byte in spans(site).into_iter().flatten().map(|byte| byte as usize).filter(|&byte| written[byte]) {
            judged[at] = true;
            let user = *users[byte].get_or_insert(at);
            let (a, b) = (leader(&leaders, user), leader(&leaders, at));
            leaders[a.max(b)] = a.min(b);
        }
    }
    (0..sites.len()).map(|at| judged[at].then(|| leader(&leaders, at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instruction, by first byte and the one after the last of what it reads and writes.
    fn site(read: &[(u32, u32)], write: &[(u32, u32)]) -> Site {
        let spans = |spans: &[(u32, u32)]| spans.iter().map(|&(start, end)| start..end).collect();
        let operation = if write.is_empty() { Operation::Search } else { Operation::Update };
        Site { procedure: 0, row: RowUse { pc: 0, operation, slot: 0, read: spans(read), write: spans(write) } }
    }

    #[test]
    fn instructions_are_together_when_a_written_byte_is_used_by_both() {
        let (a, b, c, name) = ((16, 24), (24, 32), (32, 36), (40, 50));
        let found = groups(&[
            site(&[name], &[]),
            site(&[a], &[a]),
            site(&[name, b], &[b]),
            site(&[(35, 36)], &[]),
            site(&[], &[]),
            site(&[], &[c]),
        ]);
        assert_eq!(found, [None, Some(1), Some(2), Some(3), None, Some(3)]);
        // One that uses both joins what was apart.
        let found = groups(&[site(&[], &[a]), site(&[], &[b]), site(&[(20, 28)], &[]), site(&[name], &[])]);
        assert_eq!(found, [Some(0), Some(0), Some(0), None]);
        // Neighbours do not meet.
        assert_eq!(groups(&[site(&[], &[a]), site(&[], &[b])]), [Some(0), Some(1)]);
    }
}
