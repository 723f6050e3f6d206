//! Bar and line charts as SVG, readable on light and dark ground.

/// Horizontal bars, one for each (label, value), under a title; `unit` names the values.
pub fn bars(title: &str, unit: &str, values: &[(String, f64)]) -> String {
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

/// Lines over equally spaced `labels`, one for each (name, values), from zero up, under a title; `unit` names the
/// values.
pub fn lines(title: &str, unit: &str, labels: &[String], series: &[(String, Vec<f64>)]) -> String {
    const COLOURS: [&str; 6] = ["#2a6fb0", "#c8553d", "#3a8f5c", "#8a5fb0", "#b08a2a", "#7a7a7a"];
    let most = series.iter().flat_map(|(_, values)| values).fold(f64::MIN_POSITIVE, |most, value| most.max(*value));
    let x = |at: usize| 90.0 + 620.0 * at as f64 / (labels.len().max(2) - 1) as f64;
    let y = |value: f64| 330.0 - value / most * 250.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <style>text{{fill:#222}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}}}</style>\n\
         <text x=\"10\" y=\"24\" font-size=\"17\">{}</text>\n<text x=\"10\" y=\"46\">{}</text>\n\
         <path d=\"M90 80V330H710\" fill=\"none\" stroke=\"#888\"/>\n\
         <text x=\"84\" y=\"84\" text-anchor=\"end\">{}</text><text x=\"84\" y=\"334\" text-anchor=\"end\">0</text>\n",
        370 + 20 * series.len(),
        escape(title),
        escape(unit),
        if most < 100.0 { format!("{most:.2}") } else { grouped(most) }
    );
    for (at, label) in labels.iter().enumerate() {
        let (x, label) = (x(at), escape(label));
        svg.push_str(&format!("<text x=\"{x:.1}\" y=\"350\" text-anchor=\"middle\">{label}</text>\n"));
    }
    for (number, (name, values)) in series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> =
            values.iter().enumerate().map(|(at, value)| format!("{:.1},{:.1}", x(at), y(*value))).collect();
        let below = 376 + 20 * number;
        svg.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <rect x=\"90\" y=\"{}\" width=\"18\" height=\"4\" fill=\"{colour}\"/><text x=\"116\" y=\"{below}\">{}</text>\n",
            points.join(" "),
            below - 7,
            escape(name)
        ));
    }
    svg + "</svg>\n"
}

/// Steps of a decade: buckets are put together to these, so that lines of different buckets compare.
const STEPS: usize = 12;
const DECADES: usize = 8;

/// The share of each step from one nanosecond to a hundred milliseconds, in percent.
fn shares(buckets: &[(u64, u64)]) -> Vec<f64> {
    let mut shares = vec![0.0; DECADES * STEPS + 1];
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    for &(ns, count) in buckets {
        let step = ((ns.max(1) as f64).log10() * STEPS as f64).round() as usize;
        shares[step.min(DECADES * STEPS)] += 100.0 * count as f64 / all.max(1) as f64;
    }
    shares
}

fn decades() -> Vec<String> {
    let label = |step: usize| match step % STEPS {
        0 => ["1 ns", "10", "100", "1 us", "10", "100", "1 ms", "10", "100"][step / STEPS].to_string(),
        _ => String::new(),
    };
    (0..=DECADES * STEPS).map(label).collect()
}

/// How often something took how long, on a logarithmic axis of nanoseconds, one line for each (name, buckets); a bucket
/// is its largest value and how many are in it.
pub fn distribution(title: &str, series: &[(String, Vec<(u64, u64)>)]) -> String {
    let series: Vec<_> = series.iter().map(|(name, buckets)| (name.clone(), shares(buckets))).collect();
    lines(title, "share of the requests, percent, against nanoseconds", &decades(), &series)
}

/// How many took at most how long: as [`distribution`], added up, from a microsecond on.
pub fn cumulative(title: &str, what: &str, series: &[(String, Vec<(u64, u64)>)]) -> String {
    const FIRST: usize = 3 * STEPS;
    let sums = |buckets: &Vec<(u64, u64)>| {
        let mut sum = 0.0;
        let sums = shares(buckets).into_iter().map(|share| {
            sum += share;
            sum
        });
        sums.skip(FIRST).collect()
    };
    let series: Vec<(String, Vec<f64>)> = series.iter().map(|(name, buckets)| (name.clone(), sums(buckets))).collect();
    lines(title, &format!("{what} that took at most so long, percent"), &decades()[FIRST..], &series)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A number with its thousands apart.
pub fn grouped(value: f64) -> String {
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
        let chart = super::lines("t", "u", &["1".into(), "2".into()], &[("a&b".into(), vec![1.0, 2.0])]);
        assert!(chart.contains("points=\"90.0,205.0 710.0,80.0\"") && chart.contains("a&amp;b"), "{chart}");
        let chart = super::cumulative("t", "calls", &[("a".into(), vec![(1_000, 1), (100_000_000, 3)])]);
        assert!(chart.contains("points=\"90.0,267.5 ") && chart.contains(" 710.0,80.0\""), "{chart}");
        assert!(super::bars("a<b", "u", &[("x&y".into(), 1.0)]).contains("x&amp;y"));
    }
}
