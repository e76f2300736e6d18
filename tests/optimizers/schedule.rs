//! Learning rates over the count of updates, against the loops of MXNet's schedulers.

use std::f64::consts::PI;

use super::open;

/// The learning rates of the first updates, seen from how far gradients of -1 move a value.
fn rates(options: &str, count: usize) -> Vec<f64> {
    let (store, mut last) = (open(), 0.0);
    store.init(1u64, &[0.0f64]).unwrap();
    store.set_optimizer("sgd", options).unwrap();
    let rate = |_| {
        store.push(1u64, &[-1.0f64]).unwrap();
        let mut out = [0.0f64];
        store.pull(1u64, &mut out).unwrap();
        out[0] - std::mem::replace(&mut last, out[0])
    };
    (0..count).map(rate).collect()
}

fn check(options: &str, expected: impl Fn(usize) -> f64) {
    for (index, rate) in rates(options, 40).into_iter().enumerate() {
        let (t, expected) = (index + 1, expected(index + 1));
        assert!((rate - expected).abs() < 1e-12, "{options}, update {t}: {rate}, not {expected}");
    }
}

#[test]
fn without_a_schedule_it_is_constant() {
    check("learning_rate=0.5", |_| 0.5);
    check("learning_rate=0.5,lr_scheduler=constant", |_| 0.5);
}

#[test]
fn factor_multiplies_every_so_many_updates() {
    let factor = |t: usize, stop: f64| {
        let (mut rate, mut count) = (0.8, 0);
        while t > count + 7 {
            count += 7;
            rate *= 0.5;
            if rate < stop {
                rate = stop;
            }
        }
        rate
    };
    check("learning_rate=0.8,lr_scheduler=factor,step=7,factor=0.5", |t| factor(t, 1e-8));
    let options = "learning_rate=0.8,lr_scheduler=factor,step=7,factor=0.5,stop_factor_lr=0.15";
    check(options, |t| factor(t, 0.15));
}

#[test]
fn multifactor_multiplies_after_each_step() {
    let multi = |t: usize| {
        let mut rate = 0.8;
        for step in [5, 9, 30] {
            if t > step {
                rate *= 0.1;
            }
        }
        rate
    };
    check("learning_rate=0.8,lr_scheduler=multifactor,steps=[5,9,30],factor=0.1", multi);
    check("steps=[ 5, 9,30 ] , factor=0.1,lr_scheduler=MultiFactor,learning_rate=0.8", multi);
}

#[test]
fn poly_and_cosine_end_at_their_last_update() {
    let poly = |t: usize, power: f64, last: f64| {
        let left = 1.0 - t.min(30) as f64 / 30.0;
        last + (0.8 - last) * left.powf(power)
    };
    check("learning_rate=0.8,lr_scheduler=poly,max_update=30", |t| poly(t, 2.0, 0.0));
    let options = "learning_rate=0.8,lr_scheduler=poly,max_update=30,pwr=0.5,final_lr=0.1";
    check(options, |t| poly(t, 0.5, 0.1));
    let cosine = |t: usize| 0.1 + 0.7 * (1.0 + (PI * t.min(30) as f64 / 30.0).cos()) / 2.0;
    check("learning_rate=0.8,lr_scheduler=cosine,max_update=30,final_lr=0.1", cosine);
}

#[test]
fn a_warm_up_comes_before_every_schedule() {
    let warm = |t: usize, then: f64| if t < 10 { 0.2 + 0.6 * t as f64 / 10.0 } else { then };
    let warm_up = "learning_rate=0.8,warmup_steps=10,warmup_begin_lr=0.2";
    check(warm_up, |t| warm(t, 0.8));
    check(&format!("{warm_up},warmup_mode=constant"), |t| if t < 10 { 0.2 } else { 0.8 });
    check(&format!("{warm_up},lr_scheduler=factor,step=25,factor=0.5"), |t| {
        warm(t, if t > 25 { 0.4 } else { 0.8 })
    });
    check(&format!("{warm_up},lr_scheduler=poly,max_update=30,pwr=1"), |t| {
        warm(t, 0.8 * (1.0 - (t.clamp(10, 30) - 10) as f64 / 20.0))
    });
    check(&format!("{warm_up},lr_scheduler=cosine,max_update=30"), |t| {
        let progress = (t.clamp(10, 30) - 10) as f64 / 20.0;
        warm(t, 0.8 * (1.0 + (PI * progress).cos()) / 2.0)
    });
}

#[test]
fn counting_can_begin_later() {
    let options = "learning_rate=0.8,lr_scheduler=factor,step=7,factor=0.5";
    let (all, late) = (rates(options, 30), rates(&format!("{options},begin_num_update=11"), 19));
    assert!(all[11..].iter().zip(&late).all(|(a, b)| (a - b).abs() < 1e-12), "{all:?} {late:?}");
}

#[test]
fn a_new_learning_rate_is_scheduled_from_where_the_key_is() {
    let store = open();
    store.init(1u64, &[0.0f64]).unwrap();
    store.set_optimizer("sgd", "learning_rate=1,lr_scheduler=factor,step=1,factor=0.5").unwrap();
    store.push(1u64, &[-1.0f64]).unwrap();
    store.set_hyperparameter("learning_rate", 8.0).unwrap();
    store.push(1u64, &[-1.0f64]).unwrap();
    let mut out = [0.0f64];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [5.0]);
}
