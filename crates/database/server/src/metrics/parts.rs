//! Which part of every table a node has, and whether those of the others are there.

use lockwork::divided::Others;
use serde_json::{Value, json};

use super::families::Writer;

/// See the module.
pub(super) struct Parts {
    pub(super) part: u16,
    pub(super) others: Others,
}

impl Parts {
    /// Of each part the address of its node, and why it is not connected, if so.
    fn all(&self) -> Vec<(String, Option<String>)> {
        let mut all = self.others.status();
        for (address, trouble) in &mut all {
            // Some say it themselves.
            let bare = trouble.as_ref().and_then(|why| why.strip_prefix(&*address)?.strip_prefix(": "));
            if let Some(bare) = bare.map(str::to_string) {
                *trouble = Some(bare);
            }
        }
        all
    }

    /// A line for each part whose node is not connected.
    pub(super) fn missing(&self) -> String {
        let all = self.all();
        let lines = all.iter().enumerate().filter_map(|(number, (address, trouble))| {
            Some(format!("part {} ({address}): {}\n", number + 1, trouble.as_ref()?))
        });
        lines.collect()
    }

    /// Writes metrics.
    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        let all = self.all();
        writer.gauge("node_part", "The part of every table that this node has.", u64::from(self.part) + 1)?;
        writer.gauge("node_parts", "How many parts there are.", all.len())?;
        let connected = all.iter().enumerate().map(|(number, (address, trouble))| {
            ([("part", (number + 1).to_string()), ("address", address.clone())], u64::from(trouble.is_none()))
        });
        writer.gauges(
            "part_connected",
            "Whether the node of a part is connected to this one, or is this one.",
            connected,
        )
    }

    /// For the page: of each part its number, where its node is, and why it is not connected, if so.
    pub(super) fn status(&self) -> Value {
        let all = self.all().into_iter().enumerate();
        let each = all.map(|(number, (address, trouble))| json!([number + 1, address, trouble]));
        json!({ "part": self.part + 1, "all": each.collect::<Vec<_>>() })
    }
}
