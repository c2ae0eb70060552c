//! The little linear algebra that a fit of a few coefficients needs.

/// Coefficients of a fit.
pub(super) const COUNT: usize = 6;

/// A vector over the coefficients.
pub(super) type Vector = [f64; COUNT];

/// A symmetric matrix over the coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matrix(pub(super) [[f64; COUNT]; COUNT]);

impl Matrix {
    /// `self + factor × other`.
    pub(super) fn plus(&self, factor: f64, other: &Matrix) -> Matrix {
        let mut sum = *self;
        for (row, other_row) in sum.0.iter_mut().zip(&other.0) {
            for (cell, other_cell) in row.iter_mut().zip(other_row) {
                *cell += factor * other_cell;
            }
        }
        sum
    }

    /// `v vᵀ`.
    pub(super) fn outer(v: &Vector) -> Matrix {
        Matrix(v.map(|a| v.map(|b| a * b)))
    }

    /// `self × v`.
    pub(super) fn times(&self, v: &Vector) -> Vector {
        self.0.map(|row| dot(&row, v))
    }

    /// Solves `self × x = b` over the coefficients marked `free`, the others being zero, by
    /// Cholesky decomposition. `None` if that part is not positive definite.
    pub(super) fn solve(&self, free: [bool; COUNT], b: &Vector) -> Option<Vector> {
        // Rows and columns that are not free become those of the identity.
        let cell = |i: usize, j: usize| match (i == j, free[i] && free[j]) {
            (_, true) => self.0[i][j],
            (true, false) => 1.0,
            (false, false) => 0.0,
        };
        let mut lower = [[0.0; COUNT]; COUNT];
        for i in 0..COUNT {
            for j in 0..=i {
                let rest = cell(i, j) - (0..j).map(|k| lower[i][k] * lower[j][k]).sum::<f64>();
                lower[i][j] = if i != j {
                    rest / lower[j][j]
                } else if rest > 0.0 && rest.is_finite() {
                    rest.sqrt()
                } else {
                    return None;
                };
            }
        }
        let mut x = [0.0; COUNT];
        for i in 0..COUNT {
            let right = if free[i] { b[i] } else { 0.0 };
            x[i] = (right - (0..i).map(|k| lower[i][k] * x[k]).sum::<f64>()) / lower[i][i];
        }
        for i in (0..COUNT).rev() {
            x[i] = (x[i] - (i + 1..COUNT).map(|k| lower[k][i] * x[k]).sum::<f64>()) / lower[i][i];
        }
        x.iter().all(|v| v.is_finite()).then_some(x)
    }
}

/// The inner product.
pub(super) fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Gains below this share are rounding.
const ROUNDING: f64 = 1e-12;

/// The vector of non-negative coefficients that is nearest to `at` in the metric of `metric`:
/// the exact solution of the constrained least squares problem, by the active set method of
/// Lawson and Hanson. Coefficients are set free one by one, the one that helps most first; those
/// that would turn negative on the way are bound to zero again.
pub(super) fn nearest_non_negative(metric: &Matrix, at: &Vector) -> Vector {
    if at.iter().all(|v| *v >= 0.0) {
        return *at;
    }
    let right = metric.times(at);
    let mut free = [false; COUNT];
    let mut x = [0.0; COUNT];
    // The cost falls with every round, so no set of free coefficients comes twice; the bound is
    // for rounding.
    for _ in 0..8 * COUNT {
        let pull = metric.times(&x);
        let gain = |i: usize| right[i] - pull[i];
        let bound = (0..COUNT).filter(|i| !free[*i] && gain(*i) > ROUNDING * right[*i].abs());
        let Some(best) = bound.max_by(|a, b| gain(*a).total_cmp(&gain(*b))) else { break };
        free[best] = true;
        while let Some(target) = metric.solve(free, &right) {
            let reach = |i: &usize| x[*i] / (x[*i] - target[*i]);
            let turning = (0..COUNT).filter(|i| free[*i] && target[*i] < 0.0);
            let first = turning.min_by(|a, b| reach(a).total_cmp(&reach(b)));
            let step = first.as_ref().map_or(1.0, reach);
            for i in 0..COUNT {
                x[i] = (x[i] + step * (target[i] - x[i])).max(0.0);
            }
            let Some(first) = first else { break };
            (x[first], free[first]) = (0.0, false);
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Diagonally dominant, so positive definite, with couplings of either sign.
    fn spd() -> Matrix {
        let mut cells = [[0.0; COUNT]; COUNT];
        for (i, row) in cells.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                let sign = if (i + j) % 3 == 0 { -1.0 } else { 1.0 };
                *cell =
                    if i == j { 4.0 + i as f64 } else { sign * 0.9 / (1.0 + i.abs_diff(j) as f64) };
            }
        }
        Matrix(cells)
    }

    fn cost(metric: &Matrix, x: &Vector, at: &Vector) -> f64 {
        let gap: Vector = std::array::from_fn(|i| x[i] - at[i]);
        dot(&gap, &metric.times(&gap))
    }

    #[test]
    fn a_solution_solves() {
        let b = [1.0, -2.0, 0.5, 3.0, 0.0, -1.0];
        let x = spd().solve([true; COUNT], &b).expect("positive definite");
        for (left, right) in spd().times(&x).iter().zip(&b) {
            assert!((left - right).abs() < 1e-12);
        }
    }

    #[test]
    fn a_fixed_coefficient_stays_zero() {
        let mut free = [true; COUNT];
        free[1] = false;
        let x = spd().solve(free, &[1.0, 9.0, 1.0, 0.5, -0.5, 2.0]).expect("positive definite");
        assert_eq!(x[1], 0.0);
        assert!((dot(&spd().0[0], &x) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_solution() {
        let all = [true; COUNT];
        assert_eq!(Matrix([[0.0; COUNT]; COUNT]).solve(all, &[1.0; COUNT]), None);
        assert_eq!(Matrix([[f64::NAN; COUNT]; COUNT]).solve(all, &[1.0; COUNT]), None);
    }

    /// Against the plain way: every set of zeros is tried.
    fn by_trial(metric: &Matrix, at: &Vector) -> Vector {
        let right = metric.times(at);
        let sets = (0..1_u8 << COUNT).filter_map(|set| {
            let free = std::array::from_fn(|i| set >> i & 1 != 0);
            metric.solve(free, &right).filter(|x| x.iter().all(|v| *v >= 0.0))
        });
        sets.min_by(|a, b| cost(metric, a, at).total_cmp(&cost(metric, b, at))).expect("the zeros")
    }

    proptest::proptest! {
        #[test]
        fn the_nearest_non_negative_point_is_the_best_of_all_sets_of_zeros(
            at in proptest::array::uniform6(-3.0..3.0_f64),
            tilt in proptest::array::uniform6(-20.0..20.0_f64),
        ) {
            let metric = spd().plus(1.0, &Matrix::outer(&tilt));
            let found = nearest_non_negative(&metric, &at);
            proptest::prop_assert!(found.iter().all(|v| *v >= 0.0));
            let (found, best) = (cost(&metric, &found, &at), cost(&metric, &by_trial(&metric, &at), &at));
            proptest::prop_assert!(found <= best + 1e-6 * (1.0 + best), "{found} loses to {best}");
        }
    }
}
