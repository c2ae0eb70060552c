//! Python's `random.Random`, draw for draw.
//!
//! The published figures of the documents workload were made with it, so a run can only be held
//! against them document by document if the same seed draws the same documents. The generator is
//! the Mersenne Twister MT19937 of Matsumoto and Nishimura (1998), seeded by `init_by_array` with
//! the seed's 32-bit digits as CPython does for integers.

const STATE_WORDS: usize = 624;
const MIDDLE_WORD: usize = 397;
const UPPER_BIT: u32 = 0x8000_0000;
const TWIST: u32 = 0x9908_b0df;

/// A generator in the state of `random.Random(seed)`.
#[derive(Clone)]
pub struct PythonRandom {
    state: [u32; STATE_WORDS],
    next: usize,
}

impl std::fmt::Debug for PythonRandom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PythonRandom").field("next", &self.next).finish_non_exhaustive()
    }
}

impl PythonRandom {
    /// `random.Random(seed)`.
    pub fn new(seed: u64) -> Self {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let digits: &[u32] = if high == 0 { &[low] } else { &[low, high] };
        let mut random = Self { state: linear_state(19_650_218), next: STATE_WORDS };
        random.mix_in(digits);
        random
    }

    /// `random()`: 53 random bits in `[0, 1)`.
    pub fn random(&mut self) -> f64 {
        let high = f64::from(self.word() >> 5);
        let low = f64::from(self.word() >> 6);
        (high * 67_108_864.0 + low) / 9_007_199_254_740_992.0
    }

    /// `getrandbits(bits)` for 1 to 64 bits.
    pub fn bits(&mut self, bits: u32) -> u64 {
        let mut value = 0;
        let mut shift = 0;
        while shift < bits {
            let taken = (bits - shift).min(32);
            value |= u64::from(self.word() >> (32 - taken)) << shift;
            shift += taken;
        }
        value
    }

    /// `randrange(n)`, which is also the index that `choice` takes from `n` things; 0 for `n` = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        let bits = u64::BITS - n.leading_zeros();
        loop {
            let value = if bits == 0 { 0 } else { self.bits(bits) };
            if value < n || n == 0 {
                return value;
            }
        }
    }

    /// The index that one draw of `choices` takes from `n` equally likely things.
    pub fn choice_of(&mut self, n: usize) -> usize {
        (self.random() * n as f64) as usize
    }

    /// The index that one draw of `choices` takes by running sums of weights.
    pub fn choice_by(&mut self, cumulative: &[f64]) -> usize {
        let total = cumulative.last().copied().unwrap_or(0.0);
        let point = self.random() * total;
        let index = cumulative.partition_point(|end| *end <= point);
        index.min(cumulative.len().saturating_sub(1))
    }

    /// `init_by_array`.
    fn mix_in(&mut self, digits: &[u32]) {
        let state = &mut self.state;
        let (mut i, mut j) = (1, 0);
        for _ in 0..STATE_WORDS.max(digits.len()) {
            let previous = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] = (state[i] ^ previous.wrapping_mul(1_664_525))
                .wrapping_add(digits[j])
                .wrapping_add(j as u32);
            i = step(state, i);
            j = (j + 1) % digits.len();
        }
        for _ in 1..STATE_WORDS {
            let previous = state[i - 1] ^ (state[i - 1] >> 30);
            state[i] = (state[i] ^ previous.wrapping_mul(1_566_083_941)).wrapping_sub(i as u32);
            i = step(state, i);
        }
        state[0] = UPPER_BIT;
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE_WORDS {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn twist(&mut self) {
        for i in 0..STATE_WORDS {
            let following = self.state[(i + 1) % STATE_WORDS];
            let y = (self.state[i] & UPPER_BIT) | (following & !UPPER_BIT);
            let odd = if y & 1 == 1 { TWIST } else { 0 };
            self.state[i] = self.state[(i + MIDDLE_WORD) % STATE_WORDS] ^ (y >> 1) ^ odd;
        }
        self.next = 0;
    }
}

/// The next place of the seeding loops; wrapping round carries the last word to the front.
fn step(state: &mut [u32; STATE_WORDS], i: usize) -> usize {
    if i + 1 < STATE_WORDS {
        return i + 1;
    }
    state[0] = state[STATE_WORDS - 1];
    1
}

/// `init_genrand`.
fn linear_state(seed: u32) -> [u32; STATE_WORDS] {
    let mut state = [seed; STATE_WORDS];
    for i in 1..STATE_WORDS {
        let previous = state[i - 1] ^ (state[i - 1] >> 30);
        state[i] = previous.wrapping_mul(1_812_433_253).wrapping_add(i as u32);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draws_are_those_of_cpython() {
        let mut random = PythonRandom::new(1);
        let first: Vec<f64> = (0..3).map(|_| random.random()).collect();
        assert_eq!(
            first,
            [0.134_364_244_112_401_22, 0.847_433_736_937_232_7, 0.763_774_618_976_614]
        );
        let mut random = PythonRandom::new((1 << 40) + 5);
        assert_eq!(random.random(), 0.504_380_297_041_844_3);
    }

    #[test]
    fn the_choices_are_those_of_cpython() {
        let mut random = PythonRandom::new(1);
        let drawn: Vec<usize> = (0..10).map(|_| random.choice_of(15)).collect();
        assert_eq!(drawn, [2, 12, 11, 3, 7, 6, 9, 11, 1, 0]);

        let mut total = 0.0;
        let cumulative: Vec<f64> = (0..15)
            .map(|rank| {
                total += 1.0 / (f64::from(rank) + 1.0);
                total
            })
            .collect();
        let mut random = PythonRandom::new(2);
        let drawn: Vec<usize> = (0..10).map(|_| random.choice_by(&cumulative)).collect();
        assert_eq!(drawn, [12, 12, 0, 0, 8, 5, 4, 1, 3, 3]);
    }

    #[test]
    fn integers_are_those_of_cpython() {
        let mut random = PythonRandom::new(1);
        let choice: Vec<u64> = (0..5).map(|_| random.below(15)).collect();
        assert_eq!(choice, [2, 9, 13, 12, 12]);
        let range: Vec<u64> = (0..5).map(|_| random.below(1000)).collect();
        assert_eq!(range, [64, 261, 120, 507, 779]);
        assert_eq!(random.bits(40), 517_326_624_931);
        assert_eq!(random.below(0), 0);
    }
}
