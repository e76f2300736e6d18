//! The rules as plain loops over f64, by the words of docs/use/optimizers.md.
#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use std::collections::HashMap;

/// One key under one rule.
pub struct Model {
    rule: &'static str,
    pub options: HashMap<&'static str, f64>,
    /// Elements in a row.
    row: usize,
    pub value: Vec<f64>,
    states: [Vec<f64>; 3],
    /// Updates so far.
    t: i32,
    /// The momenta of nadam's schedule, multiplied.
    product: f64,
    /// The last learning rate.
    last: Option<f64>,
}

/// What a rule makes a new value of.
struct Element {
    w: f64,
    rescaled: f64,
    /// The gradient, clipped without weight decay.
    before: f64,
    /// The gradient, clipped with it.
    after: f64,
    states: [f64; 3],
    lr: f64,
    wd: f64,
}

fn norm(array: impl Iterator<Item = f64>) -> f64 {
    array.map(|it| it * it).sum::<f64>().sqrt()
}

fn sign(number: f64) -> f64 {
    if number > 0.0 {
        1.0
    } else if number < 0.0 {
        -1.0
    } else {
        0.0
    }
}

impl Model {
    pub fn new(rule: &'static str, value: Vec<f64>, row: usize) -> Self {
        let states = [(); 3].map(|()| vec![0.0; value.len()]);
        let options = HashMap::new();
        Self { rule, options, row, value, states, t: 0, product: 1.0, last: None }
    }

    /// An option, which must have been set.
    fn option(&self, name: &str) -> f64 {
        *self.options.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.rule))
    }

    fn clip(&self, number: f64) -> f64 {
        let bound = self.options.get("clip_gradient").copied().unwrap_or(f64::INFINITY);
        number.max(-bound).min(bound)
    }

    pub fn push(&mut self, gradient: &[f64]) {
        self.t += 1;
        let (lr, wd) = (self.option("learning_rate"), self.option("wd"));
        let rescaled: Vec<f64> =
            gradient.iter().map(|it| it * self.option("rescale_grad")).collect();
        match self.rule {
            "lars" => self.lars(&rescaled, lr, wd),
            "lamb" => self.lamb(&rescaled, lr, wd),
            "groupadagrad" => self.group_adagrad(&rescaled, lr, wd),
            "nadam" => self.nadam(&rescaled, lr, wd),
            _ => self.elements(&rescaled, lr, wd),
        }
        self.last = Some(lr);
    }

    /// A push of rows, each of which has a gradient or none, that changes no others.
    pub fn push_rows(&mut self, gradients: &[Option<Vec<f64>>]) {
        let before = (self.value.clone(), self.states.clone());
        let zero = vec![0.0; self.row];
        let dense: Vec<f64> =
            gradients.iter().flat_map(|it| it.as_ref().unwrap_or(&zero)).copied().collect();
        self.push(&dense);
        for at in (0..gradients.len()).filter(|&at| gradients[at].is_none()) {
            let row = at * self.row..(at + 1) * self.row;
            self.value[row.clone()].copy_from_slice(&before.0[row.clone()]);
            let kept = if self.rule == "groupadagrad" { at..at + 1 } else { row };
            for (state, before) in self.states.iter_mut().zip(&before.1) {
                state[kept.clone()].copy_from_slice(&before[kept.clone()]);
            }
        }
    }

    fn elements(&mut self, rescaled: &[f64], lr: f64, wd: f64) {
        for (i, &rescaled) in rescaled.iter().enumerate() {
            let w = self.value[i];
            let element = Element {
                w,
                rescaled,
                before: self.clip(rescaled),
                after: self.clip(rescaled + wd * w),
                states: self.states.each_ref().map(|state| state[i]),
                lr,
                wd,
            };
            let (new, states) = match self.rule {
                "adam" | "adamw" | "adamax" | "ftml" | "ftrl" => self.moments(&element),
                "adagrad" | "rmsprop" | "adadelta" => self.squares(&element),
                _ => self.steps(&element),
            };
            self.value[i] = new;
            (0..3).for_each(|at| self.states[at][i] = states[at]);
        }
    }

    /// What an average that began as zero lacks.
    fn bias(&self, name: &str) -> f64 {
        1.0 - self.option(name).powi(self.t)
    }

    fn mix(&self, name: &str, old: f64, new: f64) -> f64 {
        self.option(name) * old + (1.0 - self.option(name)) * new
    }

    /// Rules that add up steps.
    fn steps(&self, element: &Element) -> (f64, [f64; 3]) {
        let &Element { w, rescaled, before, states: [a, b, c], lr, wd, .. } = element;
        let momentum = || self.option("momentum");
        match self.rule {
            "sgd" | "momentum" => {
                let m = momentum() * a - lr * (before + wd * w);
                (w + m, [m, b, c])
            }
            "nag" => {
                let kept = momentum() * a;
                let ahead = kept - lr * (before + wd * w);
                let new = w - kept + (1.0 + momentum()) * ahead;
                (new, [kept - lr * (before + wd * new), b, c])
            }
            "signum" if momentum() == 0.0 => {
                let keep = 1.0 - lr * (wd + self.option("wd_lh"));
                (keep * w - lr * sign(before), [a, b, c])
            }
            "signum" => {
                let m = self.mix("momentum", a, before + wd * w);
                ((1.0 - lr * self.option("wd_lh")) * w - lr * sign(m), [m, b, c])
            }
            "lion" => {
                let step = sign(self.mix("beta1", a, before)) + wd * w;
                (w - lr * step, [self.mix("beta2", a, before), b, c])
            }
            "dcasgd" => {
                // The second state is the value before the last push, the third whether there is one.
                let old = if c == 0.0 { w } else { b };
                let delay = self.option("lamda") * before * before * (w - old);
                let m = momentum() * a - lr * (before + wd * w + delay);
                (w + m, [m, w, 1.0])
            }
            "test" => (w + rescaled, [a, b, c]),
            other => panic!("no model of {other}"),
        }
    }

    /// Rules that divide by the root of squares, and correct no bias.
    fn squares(&self, element: &Element) -> (f64, [f64; 3]) {
        let &Element { w, before, after, states: [a, b, c], lr, wd, .. } = element;
        match self.rule {
            "adagrad" => {
                let h = a + before * before;
                (w - lr * (before / (h + self.option("eps")).sqrt() + wd * w), [h, b, c])
            }
            "rmsprop" => {
                let n = self.mix("gamma1", a, after * after);
                let g = self.mix("gamma1", b, after);
                let centered = self.option("centered") != 0.0;
                let variance = if centered { (n - g * g).max(0.0) } else { n };
                let step = lr * after / (variance + self.option("epsilon")).sqrt();
                let d = if centered { self.option("gamma2") * c - step } else { -step };
                let bound = self.option("clip_weights");
                ((w + d).max(-bound).min(bound), [n, g, d])
            }
            _ => {
                let (h, epsilon) = (self.mix("rho", a, before * before), self.option("epsilon"));
                let step = ((b + epsilon) / (h + epsilon)).sqrt() * before;
                (w - step - wd * w, [h, self.mix("rho", b, step * step), c])
            }
        }
    }

    /// Rules with averages or sums of gradients and of their squares.
    fn moments(&self, element: &Element) -> (f64, [f64; 3]) {
        let &Element { w, before, after, states: [a, b, c], lr, wd, .. } = element;
        match self.rule {
            "adam" => {
                let (m, v) = (self.mix("beta1", a, after), self.mix("beta2", b, after * after));
                let rate = lr * self.bias("beta2").sqrt() / self.bias("beta1");
                (w - rate * m / (v.sqrt() + self.option("epsilon")), [m, v, c])
            }
            "adamw" => {
                let (m, v) = (self.mix("beta1", a, before), self.mix("beta2", b, before * before));
                let size = (v / self.bias("beta2")).sqrt() + self.option("epsilon");
                (w * (1.0 - lr * wd) - lr * m / self.bias("beta1") / size, [m, v, c])
            }
            "adamax" => {
                let (m, u) =
                    (self.mix("beta1", a, after), after.abs().max(self.option("beta2") * b));
                let step = if u == 0.0 { 0.0 } else { m / u };
                (w - lr / self.bias("beta1") * step, [m, u, c])
            }
            "ftrl" => {
                let (n, l1) = (b + before * before, self.option("lamda1"));
                let z = a + before - (n.sqrt() - b.sqrt()) * w / lr;
                let size = (self.option("beta") + n.sqrt()) / lr + wd;
                (if z.abs() > l1 { (sign(z) * l1 - z) / size } else { 0.0 }, [z, n, c])
            }
            _ => {
                let v = self.mix("beta2", b, after * after);
                let root = (v / self.bias("beta2")).sqrt();
                let d = self.bias("beta1") / lr * (root + self.option("epsilon"));
                let z = self.mix("beta1", c, after) - (d - self.option("beta1") * a) * w;
                (-z / d, [d, v, z])
            }
        }
    }

    fn lars(&mut self, rescaled: &[f64], lr: f64, wd: f64) {
        let (w, g) = (norm(self.value.iter().copied()), norm(rescaled.iter().copied()));
        let mut local = lr;
        if w > 0.0 && g > 0.0 {
            local = lr * self.option("eta") * w / (g + wd * w + self.option("eps"));
        }
        let mut momentum = self.option("momentum");
        if self.option("momentum_correction") != 0.0 && self.last.is_some_and(|last| last != 0.0) {
            momentum *= lr / self.last.unwrap();
        }
        for (i, &rescaled) in rescaled.iter().enumerate() {
            let gradient = self.clip(rescaled) + wd * self.value[i];
            self.states[0][i] = momentum * self.states[0][i] - local * gradient;
            self.value[i] += self.states[0][i];
        }
    }

    fn lamb(&mut self, rescaled: &[f64], lr: f64, wd: f64) {
        let (beta1, beta2) = (self.option("beta1"), self.option("beta2"));
        let corrects = self.option("bias_correction") != 0.0;
        let bias = |beta: f64| if corrects { 1.0 - beta.powi(self.t) } else { 1.0 };
        let mut direction = Vec::new();
        for (i, &rescaled) in rescaled.iter().enumerate() {
            let gradient = self.clip(rescaled);
            let m = beta1 * self.states[0][i] + (1.0 - beta1) * gradient;
            let v = beta2 * self.states[1][i] + (1.0 - beta2) * gradient * gradient;
            (self.states[0][i], self.states[1][i]) = (m, v);
            let size = (v / bias(beta2)).sqrt() + self.option("epsilon");
            direction.push(m / bias(beta1) / size + wd * self.value[i]);
        }
        let bounded = norm(self.value.iter().copied())
            .max(self.option("lower_bound"))
            .min(self.option("upper_bound"));
        let length = norm(direction.iter().copied());
        let ratio = if bounded == 0.0 || length == 0.0 { 1.0 } else { bounded / length };
        for (value, step) in self.value.iter_mut().zip(direction) {
            *value -= lr * ratio * step;
        }
    }

    fn group_adagrad(&mut self, rescaled: &[f64], lr: f64, wd: f64) {
        let row = self.row;
        for (index, rescaled) in rescaled.chunks(row).enumerate() {
            let clipped: Vec<f64> = rescaled.iter().map(|it| self.clip(*it)).collect();
            let mean = clipped.iter().map(|it| it * it).sum::<f64>() / row as f64;
            self.states[0][index] += mean;
            let size = (self.states[0][index] + self.option("eps")).sqrt();
            for (value, gradient) in self.value[index * row..].iter_mut().zip(clipped) {
                *value -= lr * (gradient / size + wd * *value);
            }
        }
    }

    fn nadam(&mut self, rescaled: &[f64], lr: f64, wd: f64) {
        let (beta1, beta2) = (self.option("beta1"), self.option("beta2"));
        let decay = self.option("schedule_decay");
        let momentum = |t: i32| beta1 * (1.0 - 0.5 * 0.96f64.powf(f64::from(t) * decay));
        let (now, next) = (momentum(self.t), momentum(self.t + 1));
        self.product *= now;
        for (i, &rescaled) in rescaled.iter().enumerate() {
            let gradient = self.clip(rescaled + wd * self.value[i]);
            let m = beta1 * self.states[0][i] + (1.0 - beta1) * gradient;
            let v = beta2 * self.states[1][i] + (1.0 - beta2) * gradient * gradient;
            (self.states[0][i], self.states[1][i]) = (m, v);
            let ahead = (1.0 - now) * gradient / (1.0 - self.product)
                + next * m / (1.0 - self.product * next);
            let size = (v / (1.0 - beta2.powi(self.t))).sqrt() + self.option("epsilon");
            self.value[i] -= lr * ahead / size;
        }
    }
}
