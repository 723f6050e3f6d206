//! Named configurations of the processor, as `hardware/rtl/configurations.toml` has them: simulation and synthesis read
//! the same file.

use lockwork_engine::EngineError;

use crate::capabilities::MOST_WORKERS;

const FILE: &str = include_str!("../../../hardware/rtl/configurations.toml");

/// The configuration that is taken when none is named.
pub const USUAL: &str = "paper";

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

    /// The configuration of this name.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] names those there are.
    pub fn named(name: &str) -> Result<Self, EngineError> {
        let all = Self::all()?;
        let names: Vec<String> = all.iter().map(|configuration| configuration.name.clone()).collect();
        all.into_iter().find(|configuration| configuration.name == name).ok_or_else(|| {
            EngineError::BackEnd(format!(
                "there is no configuration '{name}' of the transaction processor; there are {}",
                names.join(", ")
            ))
        })
    }

    /// The same with another number of workers.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when there can be no such number.
    pub fn with_workers(mut self, workers: usize) -> Result<Self, EngineError> {
        if !workers.is_power_of_two() || workers > MOST_WORKERS {
            return Err(EngineError::BackEnd(format!(
                "a transaction processor of {workers} workers is not possible; use 1, 2, 4, 8 or {MOST_WORKERS} threads"
            )));
        }
        for (name, value) in &mut self.fields {
            if name == "workers" {
                *value = Value::Number(workers as u64);
            }
        }
        Ok(self)
    }

    /// The same with another value of a field that is a number.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when there is no such field.
    pub fn with(self, field: &str, value: u64) -> Result<Self, EngineError> {
        self.with_value(field, Value::Number(value))
    }

    /// The same with another topology of the message fabric, `ring` or `crossbar`.
    ///
    /// # Errors
    /// [`EngineError::BackEnd`] when there is no such topology.
    pub fn with_topology(self, topology: &str) -> Result<Self, EngineError> {
        if !["ring", "crossbar"].contains(&topology) {
            return Err(EngineError::BackEnd(format!("'{topology}' is no topology; use ring or crossbar")));
        }
        self.with_value("topology", Value::Text(topology.into()))
    }

    fn with_value(mut self, field: &str, value: Value) -> Result<Self, EngineError> {
        match self.fields.iter_mut().find(|(name, _)| name == field) {
            Some((_, old)) => *old = value,
            None => return Err(EngineError::BackEnd(format!("configurations have no field '{field}'"))),
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
        assert!(parse("[a]\nb = 1\nc = d").unwrap_err().to_string().contains("toml:3: 'c = d'"));
        assert!(parse("b = 1").is_err());
    }
}
