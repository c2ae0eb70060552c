//! The little linear algebra that a fit of three coefficients needs.

/// A vector over the three coefficients.
pub(super) type Vector = [f64; 3];

/// A symmetric matrix over the three coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Matrix(pub(super) [[f64; 3]; 3]);

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
    pub(super) fn solve(&self, free: [bool; 3], b: &Vector) -> Option<Vector> {
        // Rows and columns that are not free become those of the identity.
        let cell = |i: usize, j: usize| match (i == j, free[i] && free[j]) {
            (_, true) => self.0[i][j],
            (true, false) => 1.0,
            (false, false) => 0.0,
        };
        let mut lower = [[0.0; 3]; 3];
        for i in 0..3 {
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
        let mut x = [0.0; 3];
        for i in 0..3 {
            let right = if free[i] { b[i] } else { 0.0 };
            x[i] = (right - (0..i).map(|k| lower[i][k] * x[k]).sum::<f64>()) / lower[i][i];
        }
        for i in (0..3).rev() {
            x[i] = (x[i] - (i + 1..3).map(|k| lower[k][i] * x[k]).sum::<f64>()) / lower[i][i];
        }
        x.iter().all(|v| v.is_finite()).then_some(x)
    }
}

/// The inner product.
pub(super) fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// The vector of non-negative coefficients that is nearest to `at` in the metric of `metric`.
/// It is the exact solution of the constrained least squares problem: with three coefficients
/// all eight sets of zeros can be tried.
pub(super) fn nearest_non_negative(metric: &Matrix, at: &Vector) -> Vector {
    if at.iter().all(|v| *v >= 0.0) {
        return *at;
    }
    let right = metric.times(at);
    let distance = |x: &Vector| {
        let gap = [x[0] - at[0], x[1] - at[1], x[2] - at[2]];
        dot(&gap, &metric.times(&gap))
    };
    let mut best = [0.0; 3];
    let mut best_distance = distance(&best);
    for set in 1..7_u8 {
        let free = [set & 1 != 0, set & 2 != 0, set & 4 != 0];
        if let Some(x) = metric.solve(free, &right)
            && x.iter().all(|v| *v >= 0.0)
            && distance(&x) < best_distance
        {
            best_distance = distance(&x);
            best = x;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPD: Matrix = Matrix([[4.0, 1.0, 0.5], [1.0, 3.0, 0.2], [0.5, 0.2, 2.0]]);

    #[test]
    fn a_solution_solves() {
        let b = [1.0, -2.0, 0.5];
        let x = SPD.solve([true; 3], &b).expect("positive definite");
        for (left, right) in SPD.times(&x).iter().zip(&b) {
            assert!((left - right).abs() < 1e-12);
        }
    }

    #[test]
    fn a_fixed_coefficient_stays_zero() {
        let x = SPD.solve([true, false, true], &[1.0, 9.0, 1.0]).expect("positive definite");
        assert_eq!(x[1], 0.0);
        assert!((4.0 * x[0] + 0.5 * x[2] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_has_no_solution() {
        assert_eq!(Matrix([[0.0; 3]; 3]).solve([true; 3], &[1.0; 3]), None);
        assert_eq!(Matrix([[f64::NAN; 3]; 3]).solve([true; 3], &[1.0; 3]), None);
    }

    #[test]
    fn the_nearest_non_negative_point_beats_every_point_of_a_grid() {
        for at in [[-1.0, 2.0, 0.5], [0.3, -0.7, -0.1], [-1.0, -1.0, -1.0], [2.0, -3.0, 1.0]] {
            let cost = |x: &Vector| {
                let gap = [x[0] - at[0], x[1] - at[1], x[2] - at[2]];
                dot(&gap, &SPD.times(&gap))
            };
            let found = nearest_non_negative(&SPD, &at);
            assert!(found.iter().all(|v| *v >= 0.0));
            for step in 0..21_u32.pow(3) {
                let x = [step % 21, step / 21 % 21, step / 441].map(|n| f64::from(n) * 0.15);
                assert!(cost(&found) <= cost(&x) + 1e-12, "{at:?}: {found:?} loses to {x:?}");
            }
        }
    }
}
