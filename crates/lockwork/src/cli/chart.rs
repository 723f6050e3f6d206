//! A bar chart as SVG, readable on light and dark ground.

/// Horizontal bars, one for each (label, value), under a title; `unit` names the values.
pub(super) fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> String {
    let most = values.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let height = 70 + values.len() * 34;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <style>text{{fill:#222}}rect{{fill:#2a6fb0}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}rect{{fill:#6aaeea}}}}</style>\n\
         <text x=\"10\" y=\"24\" font-size=\"17\">{}</text>\n<text x=\"10\" y=\"46\">{}</text>\n",
        escape(title),
        escape(unit)
    );
    for (number, (label, value)) in values.iter().enumerate() {
        let y = 62 + number * 34;
        let width = (value / most * 400.0).max(1.0);
        svg.push_str(&format!(
            "<text x=\"10\" y=\"{}\">{}</text><rect x=\"200\" y=\"{y}\" width=\"{width:.1}\" height=\"22\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>\n",
            y + 16,
            escape(label),
            208.0 + width,
            y + 16,
            grouped(*value)
        ));
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A number with its thousands apart.
pub(super) fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (number, digit) in digits.chars().enumerate() {
        if number > 0 && (digits.len() - number) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_stand_apart_and_labels_are_escaped() {
        assert_eq!(super::grouped(1_234_567.4), "1,234,567");
        assert_eq!(super::grouped(12.0), "12");
        assert!(super::bars("a<b", "u", &[("x&y".into(), 1.0)]).contains("x&amp;y"));
    }
}
