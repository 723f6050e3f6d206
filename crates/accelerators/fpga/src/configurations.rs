//! Named configurations of the processor, as `hardware/rtl/configurations.toml` has them: simulation and synthesis read
//! the same file.

use lockwork_engine::EngineError;

use crate::capabilities::MAX_WORKERS;

const FILE: &str = include_str!("../../../../hardware/rtl/configurations.toml");

/// The configuration that is taken when none is named.
pub const USUAL: &str = "paper";

/// Fields that are numbers: least and greatest value, and whether it must be a power of two.
const LIMITS: [(&str, u64, u64, bool); 13] = [
    ("workers", 1, MAX_WORKERS as u64, true),
    ("contexts", 2, 64, true),
    ("entries", 64, 16384, true),
    ("key_words", 1, 4, false),
    ("prepare_slots", 2, 32, true),
    ("hash_slots", 2, 64, false),
    ("skiplist_slots", 0, 64, false),
    ("levels", 1, 20, false),
    ("scanners", 1, 8, false),
    ("gaps", 1, 64, true),
    ("code_words", 64, 16384, true),
    ("grants", 2, 256, true),
    ("inflight", 4, 1024, false),
];

/// A configuration: parameters of the top module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// Its name.
    pub name: String,
    /// Fields and their values, as the file has them.
    fields: Vec<(String, Value)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Text(String),
}

impl Configuration {
    /// All configurations.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] names the line that is none of a configuration.
    pub fn all() -> Result<Vec<Self>, EngineError> {
        parse(FILE)
    }

    /// The configuration of this name, or one with other values of some fields: `paper,entries=4096,topology=ring`.
    ///
    /// # Errors
    /// [`EngineError::Setting`] names the configurations that there are, the fields, or the values that are possible.
    pub fn named(text: &str) -> Result<Self, EngineError> {
        let (name, changes) = text.split_once(',').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let mut found = Self::of_file(name)?;
        for change in changes.into_iter().flat_map(|changes| changes.split(',')) {
            let Some((field, value)) = change.split_once('=') else {
                return Err(EngineError::Setting(format!("'{change}' is no field with a value, as in entries=4096")));
            };
            found = match (field, value.parse()) {
                ("topology", _) => found.with_topology(value)?,
                (_, Ok(number)) => found.with(field, number)?,
                (_, Err(_)) => {
                    return Err(EngineError::Setting(format!("{field} is '{value}', and a number is wanted")));
                }
            };
        }
        if changes.is_some() {
            found.name = text.to_string();
        }
        Ok(found)
    }

    fn of_file(name: &str) -> Result<Self, EngineError> {
        let all = Self::all()?;
        let names: Vec<String> = all.iter().map(|configuration| configuration.name.clone()).collect();
        all.into_iter().find(|configuration| configuration.name == name).ok_or_else(|| {
            EngineError::Setting(format!(
                "there is no configuration '{name}' of the transaction processor; there are {}",
                names.join(", ")
            ))
        })
    }

    /// The same with another number of workers.
    ///
    /// # Errors
    /// [`EngineError::Setting`] when there can be no such number.
    pub fn with_workers(self, workers: usize) -> Result<Self, EngineError> {
        if !workers.is_power_of_two() || workers > MAX_WORKERS {
            return Err(EngineError::Setting(format!(
                "a transaction processor of {workers} workers is not possible; use 1, 2, 4, 8 or {MAX_WORKERS} threads"
            )));
        }
        self.with_value("workers", Value::Number(workers as u64))
    }

    /// The same with another value of a field that is a number.
    ///
    /// # Errors
    /// [`EngineError::Setting`] when there is no such field, or it cannot have this value.
    pub fn with(self, field: &str, value: u64) -> Result<Self, EngineError> {
        let known = LIMITS.iter().find(|(name, ..)| *name == field);
        if let Some((_, least, most, power)) = known
            && (!(*least..=*most).contains(&value) || (*power && !value.is_power_of_two()))
        {
            let kind = if *power { "powers of two" } else { "numbers" };
            return Err(EngineError::Setting(format!(
                "{field} of the transaction processor is {value}; {kind} from {least} to {most} are possible"
            )));
        }
        self.with_value(field, Value::Number(value))
    }

    /// The same with another topology of the message fabric, `ring` or `crossbar`.
    ///
    /// # Errors
    /// [`EngineError::Setting`] when there is no such topology.
    pub fn with_topology(self, topology: &str) -> Result<Self, EngineError> {
        if !["ring", "crossbar"].contains(&topology) {
            return Err(EngineError::Setting(format!("'{topology}' is no topology; use ring or crossbar")));
        }
        self.with_value("topology", Value::Text(topology.into()))
    }

    fn with_value(mut self, field: &str, value: Value) -> Result<Self, EngineError> {
        match self.fields.iter_mut().find(|(name, _)| name == field) {
            Some((_, old)) if std::mem::discriminant(old) == std::mem::discriminant(&value) => *old = value,
            Some((_, old)) => {
                let kind = if matches!(old, Value::Number(_)) { "number" } else { "name" };
                return Err(EngineError::Setting(format!("field '{field}' of configurations is a {kind}")));
            }
            None => {
                let names: Vec<&str> = self.fields.iter().map(|(name, _)| name.as_str()).collect();
                return Err(EngineError::Setting(format!(
                    "configurations have no field '{field}'; there are {}",
                    names.join(", ")
                )));
            }
        }
        Ok(self)
    }

    /// The value of a field that is a number.
    #[must_use]
    pub fn number(&self, field: &str) -> Option<u64> {
        self.fields.iter().find_map(|(name, value)| match value {
            Value::Number(number) if name == field => Some(*number),
            _ => None,
        })
    }

    /// Parameters of the top module: `hash_slots` is `HashSlots`, and topologies are numbers.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, u64)> {
        let capitals = |name: &str| {
            let part = |part: &str| {
                let (first, rest) = part.split_at(1.min(part.len()));
                first.to_uppercase() + rest
            };
            name.split('_').map(part).collect::<String>()
        };
        let number = |value: &Value| match value {
            Value::Number(number) => *number,
            Value::Text(text) => u64::from(text == "ring"),
        };
        self.fields.iter().map(|(name, value)| (capitals(name), number(value))).collect()
    }
}

/// Reads the part of TOML that the file uses: tables of numbers and strings.
fn parse(text: &str) -> Result<Vec<Configuration>, EngineError> {
    let mut all: Vec<Configuration> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            all.push(Configuration { name: name.to_string(), fields: Vec::new() });
            continue;
        }
        let field = line.split_once('=').and_then(|(name, value)| {
            let value = value.trim();
            let text = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let value = text.map(|text| Some(Value::Text(text.to_string())));
            let value = value.unwrap_or_else(|| line_number(line).map(Value::Number))?;
            Some((name.trim().to_string(), value))
        });
        match (all.last_mut(), field) {
            (Some(configuration), Some(field)) => configuration.fields.push(field),
            _ => {
                return Err(EngineError::BackEnd(format!(
                    "hardware/rtl/configurations.toml:{}: '{line}' is neither [name] nor field = number nor field = \
                     \"text\"",
                    number + 1
                )));
            }
        }
    }
    Ok(all)
}

fn line_number(line: &str) -> Option<u64> {
    line.split_once('=')?.1.trim().replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_papers_machine_and_a_small_and_a_large_one() {
        let names: Vec<String> = Configuration::all().unwrap().into_iter().map(|found| found.name).collect();
        assert_eq!(names, ["paper", "small", "large"]);
        let paper = Configuration::named("paper").unwrap();
        assert_eq!((paper.number("workers"), paper.number("hash_slots")), (Some(4), Some(48)));
        let two = paper.with_workers(2).unwrap().parameters();
        assert!(two.contains(&("Workers".into(), 2)) && two.contains(&("HashSlots".into(), 48)), "{two:?}");
        assert!(two.contains(&("Topology".into(), 0)));
        assert!(Configuration::named("small").unwrap().parameters().contains(&("Topology".into(), 1)));
    }

    #[test]
    fn what_is_no_configuration_is_named() {
        let error = Configuration::named("huge").unwrap_err().to_string();
        assert!(error.contains("'huge'") && error.contains("paper, small, large"), "{error}");
        assert!(Configuration::named("paper").unwrap().with_workers(3).unwrap_err().to_string().contains("3 workers"));
        for (text, part) in [
            ("paper,entries", "entries=4096"),
            ("paper,entries=many", "'many'"),
            ("paper,entries=1000", "powers of two from 64 to 16384"),
            ("paper,registers=3", "hash_slots"),
            ("paper,topology=star", "ring or crossbar"),
            ("huge,entries=64", "'huge'"),
        ] {
            let error = Configuration::named(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let other = Configuration::named("paper,entries=4096,topology=ring").unwrap();
        assert_eq!((other.number("entries"), other.number("contexts")), (Some(4096), Some(16)));
        assert!(other.parameters().contains(&("Topology".into(), 1)) && other.name.contains("4096"));
        assert!(other.with("topology", 7).unwrap_err().to_string().contains("'topology'"));
        assert!(parse("[a]\nb = 1\nc = d").unwrap_err().to_string().contains("toml:3: 'c = d'"));
        assert!(parse("b = 1").unwrap_err().to_string().contains("toml:1: 'b = 1' is neither [name]"));
    }
}
