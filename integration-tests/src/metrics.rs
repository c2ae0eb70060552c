//! A page of metrics, read far enough to look at single series.

/// The text that `/metrics` answers.
#[derive(Clone, Debug)]
pub struct Metrics(String);

impl Metrics {
    /// A page as it came.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The sum of the series of this name that have all these labels; 0 without any.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.values(name, labels).sum()
    }

    /// The one series of this name with these labels.
    ///
    /// # Panics
    /// There is none, or more than one.
    #[track_caller]
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let found: Vec<f64> = self.values(name, labels).collect();
        assert_eq!(found.len(), 1, "series {name} {labels:?} in:\n{}", self.0);
        found[0]
    }

    /// How many series there are on the page.
    pub fn series(&self) -> usize {
        self.samples().count()
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }

    fn samples(&self) -> impl Iterator<Item = &str> {
        self.0.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
    }

    fn values(&self, name: &str, labels: &[(&str, &str)]) -> impl Iterator<Item = f64> {
        let wanted: Vec<String> = labels.iter().map(|(k, v)| format!("{k}=\"{v}\"")).collect();
        self.samples().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (own, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            // None of our label values has a comma.
            let has = |label: &String| own.split(',').any(|one| one == label);
            wanted.iter().all(has).then(|| value.trim().parse().ok()).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_found_by_name_and_labels() {
        let page = Metrics::new(
            "# TYPE a counter\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"3\"} 4\nab 5\n".to_owned(),
        );
        assert_eq!(page.sum("a", &[("x", "1")]), 7.0);
        assert_eq!(page.value("a", &[("y", "3")]), 4.0);
        assert_eq!(page.value("ab", &[]), 5.0);
        assert_eq!(page.sum("a", &[("x", "2")]), 0.0);
        assert_eq!(page.series(), 3);
    }
}
