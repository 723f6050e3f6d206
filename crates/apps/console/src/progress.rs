//! Progress of long work: on standard error, on a terminal only.

use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// What all tables are drawn on: one at a time.
static SCREEN: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Tells something on standard error, above the table if one is drawn.
pub fn tell(what: &str) {
    SCREEN.suspend(|| eprintln!("lockwork: {what}"));
}

/// A table of rows that are drawn in place, one for each name. Gone from the screen when dropped.
pub struct Live {
    rows: Vec<(String, ProgressBar)>,
}

impl Live {
    /// A table with a row for every name, all waiting.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let style = ProgressStyle::with_template("{wide_msg}").expect("a constant template");
        let row = |name: &str| {
            let bar = SCREEN.add(ProgressBar::new_spinner().with_style(style.clone()));
            (name.to_string(), bar)
        };
        let live = Self { rows: names.into_iter().map(row).collect() };
        (0..live.rows.len()).for_each(|row| live.show(row, "waiting"));
        live
    }

    /// Replaces what stands behind the name of a row.
    pub fn show(&self, row: usize, what: &str) {
        let (name, bar) = &self.rows[row];
        bar.set_message(format!("{name:<20} {what}"));
        bar.tick();
    }

    /// Prints something while the table is off the screen.
    pub fn aside<T>(&self, printing: impl FnOnce() -> T) -> T {
        SCREEN.suspend(printing)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // A terminal that has gone away is no error.
        let _ = SCREEN.clear();
        self.rows.iter().for_each(|(_, bar)| SCREEN.remove(bar));
    }
}
