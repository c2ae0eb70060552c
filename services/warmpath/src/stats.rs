//! Summaries of measured series.

/// The `q`-quantile (0 to 1) of `sorted`, by linear interpolation between neighbours, which is
/// what numpy and the engines' own benches do. `None` for an empty series.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    Some(sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64))
}

/// The arithmetic mean. `None` for an empty series.
pub fn mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
}

/// Standard deviation over mean (of the whole population). `None` where the mean is not above 0.
pub fn coefficient_of_variation(values: &[f64]) -> Option<f64> {
    let m = mean(values).filter(|m| *m > 0.0)?;
    let variance = values.iter().map(|v| (v - m).powi(2)).sum::<f64>() / values.len() as f64;
    Some(variance.sqrt() / m)
}

/// The largest value over the mean. `None` where the mean is not above 0.
pub fn max_over_mean(values: &[f64]) -> Option<f64> {
    let m = mean(values).filter(|m| *m > 0.0)?;
    Some(values.iter().copied().fold(0.0, f64::max) / m)
}

/// Sorts a series of finite values.
pub fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        let s = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&s, 0.0), Some(1.0));
        assert_eq!(quantile(&s, 0.5), Some(2.5));
        assert_eq!(quantile(&s, 1.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn even_load_has_no_variation() {
        assert_eq!(coefficient_of_variation(&[3.0, 3.0, 3.0]), Some(0.0));
        assert_eq!(max_over_mean(&[2.0, 4.0]), Some(4.0 / 3.0));
        assert_eq!(max_over_mean(&[0.0]), None);
    }
}
