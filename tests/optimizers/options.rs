//! Names and values of options: which are taken, and what is said about the others.

use kvstore::ErrorKind;

use super::{RULES, open};

/// What is said about a rule with options that are refused.
fn refusal(rule: &str, options: &str) -> String {
    let error = open().set_optimizer(rule, options).expect_err(options);
    assert_eq!(error.kind(), ErrorKind::Option, "{rule} {options}");
    error.message().to_owned()
}

fn assert_refused(rule: &str, options: &str, text: &str) {
    let message = refusal(rule, options);
    assert!(message.contains(text), "{rule} {options:?}: {message}");
}

#[test]
fn names_of_rules_are_found_in_any_case_and_slips_get_hints() {
    for rule in RULES {
        open().set_optimizer(&rule.to_uppercase(), "").unwrap();
    }
    open().set_optimizer("AdaGrad", " ").unwrap();
    assert_refused("adm", "", "did you mean adam");
    assert_refused("rmsporp", "", "did you mean rmsprop?");
    assert_refused("", "", "the optimizers are sgd, momentum,");
    assert_refused("no_such_rule_at_all", "", "lion, test");
    assert_refused("ccsgd", "", "it was another name of sgd");
    assert_refused("LBSGD", "", "use lars, or sgd with warmup_steps");
    assert_refused("sgld", "", "its noise needs an updater of your own");
}

#[test]
fn unknown_options_are_answered_with_near_ones() {
    assert_refused("sgd", "learningrate=1", "did you mean learning_rate?");
    assert_refused("sgd", "momentun=0.9", "did you mean momentum?");
    assert_refused("adam", "momentum=0.9", "optimizer adam: there is no option \"momentum\"");
    assert_refused("adam", "beta=0.9", "did you mean beta1 or beta2?");
    assert_refused("test", "zzzzzzzzzzzz=1", "the options are learning_rate, wd, rescale_grad");
    assert_refused("sgd", "lr_mult=2", "lr_mult is set for single keys, after the optimizer");
}

#[test]
fn lists_of_options_have_one_form() {
    for good in ["", " , ", "learning_rate=1", " learning_rate = 1 ,, wd=0.1 ", "wd=1e-3"] {
        open().set_optimizer("sgd", good).unwrap();
    }
    assert_refused("sgd", "learning_rate", "\"learning_rate\" is not of the form name=value");
    assert_refused("sgd", "0.1", "is not of the form name=value");
    assert_refused("sgd", "wd=0.1,wd=0.2", "wd is given twice");
    assert_refused("adagrad", "eps=0.1,float_stable_eps=0.2", "float_stable_eps is given twice");
    assert_refused("sgd", "learning_rate=", "learning_rate is \"\"; it must be a number from 0");
    assert_refused("sgd", "learning_rate=fast", "learning_rate is \"fast\"");
    assert_refused("sgd", "learning_rate=0.1 0.2", "\"0.1 0.2\"");
}

#[test]
fn values_are_checked_when_they_are_set() {
    for (rule, options, text) in [
        ("sgd", "learning_rate=-0.1", "learning_rate is -0.1; it must be a number from 0"),
        ("sgd", "learning_rate=inf", "learning_rate is inf"),
        ("sgd", "learning_rate=nan", "learning_rate is NaN"),
        ("sgd", "rescale_grad=inf", "rescale_grad is inf; it must be a number"),
        ("sgd", "momentum=1", "momentum is 1; it must be a number from 0 to below 1"),
        ("sgd", "clip_gradient=0", "clip_gradient is 0; it must be a number above 0"),
        ("sgd", "clip_gradient=-1", "clip_gradient is -1"),
        ("sgd", "multi_precision=2", "multi_precision is 2; it must be true (1) or false (0)"),
        ("sgd", "multi_precision=yes", "multi_precision is \"yes\"; it must be true (1)"),
        ("sgd", "begin_num_update=1.5", "begin_num_update is 1.5; it must be a whole number"),
        ("adam", "beta2=1", "beta2 is 1; it must be a number from 0 to below 1"),
        ("adam", "epsilon=-1", "epsilon is -1; it must be a number from 0"),
        ("lamb", "lower_bound=2,upper_bound=1", "lower_bound is 2; it must not be above"),
        ("rmsprop", "centered=maybe", "centered is \"maybe\""),
        ("rmsprop", "clip_weights=0", "clip_weights is 0; it must be a number above 0"),
    ] {
        assert_refused(rule, options, text);
    }
    open().set_optimizer("rmsprop", "centered=True,multi_precision=FALSE").unwrap();
    open().set_optimizer("sgd", "clip_gradient=inf").unwrap();
}

#[test]
fn schedules_ask_for_what_they_need_and_refuse_the_rest() {
    for (options, text) in [
        ("lr_scheduler=step", "constant or factor or multifactor or poly or cosine"),
        ("lr_scheduler=factor", "lr_scheduler=factor needs step"),
        ("lr_scheduler=multifactor", "lr_scheduler=multifactor needs steps"),
        ("lr_scheduler=poly", "lr_scheduler=poly needs max_update"),
        ("lr_scheduler=cosine,final_lr=1", "lr_scheduler=cosine needs max_update"),
        ("step=3", "step is no option of lr_scheduler=constant"),
        ("lr_scheduler=cosine,max_update=9,pwr=1", "pwr is no option of lr_scheduler=cosine"),
        ("lr_scheduler=factor,step=3,factor=1.5", "factor is 1.5; it must be a number from 0 to 1"),
        ("lr_scheduler=factor,step=2.5", "step is 2.5; it must be a whole number from 0"),
        ("lr_scheduler=multifactor,steps=5", "steps is 5; it must be a list like [30,60]"),
        ("lr_scheduler=multifactor,steps=[]", "a list like [30,60]"),
        ("lr_scheduler=multifactor,steps=[5,5]", "steps is [5,5]"),
        ("lr_scheduler=multifactor,steps=[0,5]", "steps is [0,5]"),
        ("lr_scheduler=multifactor,steps=[5,6", "steps is [5,6"),
        ("lr_scheduler=poly,max_update=9,warmup_steps=9", "max_update is 9; it must be above"),
        ("warmup_steps=9,warmup_begin_lr=1", "must not be above the learning rate, which is 0.01"),
        ("warmup_mode=slow", "warmup_mode is slow; it must be linear or constant"),
    ] {
        assert_refused("sgd", options, text);
    }
}

#[test]
fn lr_is_the_learning_rate() {
    let train = |set: &dyn Fn(&kvstore::Store)| {
        let store = open();
        store.init(1u64, &[1.0f32]).unwrap();
        set(&store);
        store.push(1u64, &[1.0f32]).unwrap();
        let mut out = [0.0f32];
        store.pull(1u64, &mut out).unwrap();
        out[0]
    };
    for rule in super::RULES {
        let long = train(&|store| store.set_optimizer(rule, "learning_rate=0.25").unwrap());
        let short = train(&|store| store.set_optimizer(rule, "lr=0.25").unwrap());
        let changed = train(&|store| {
            store.set_optimizer(rule, "").unwrap();
            store.set_hyperparameter("lr", 0.25).unwrap();
        });
        assert_eq!((short, changed), (long, long), "{rule}");
    }
    assert_refused("sgd", "learning_rate=1,lr=1", "lr is given twice");
    assert_refused("sgd", "lr=-1", "learning_rate is -1; it must be a number from 0");
}

#[test]
fn single_options_are_checked_like_lists_of_them() {
    let store = open();
    store.set_optimizer("sgd", "lr_scheduler=poly,max_update=20,warmup_steps=5").unwrap();
    let refused = |name: &str, value: f64| {
        let error = store.set_hyperparameter(name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        error.message().to_owned()
    };
    assert!(refused("momentun", 0.9).contains("did you mean momentum?"));
    assert!(refused("learning_rate", f64::NAN).contains("learning_rate is NaN"));
    assert!(refused("max_update", 5.0).contains("it must be above warmup_steps, which is 5"));
    assert!(refused("step", 5.0).contains("no option of lr_scheduler=poly"));
    assert!(refused("lr_scheduler", 1.0).contains("set with the optimizer"));
    assert!(refused("steps", 1.0).contains("set with the optimizer"));
    assert!(refused("lr_mult", 1.0).contains("set for single keys"));
    store.set_hyperparameter("max_update", 50.0).unwrap();
    store.set_hyperparameter("multi_precision", 1.0).unwrap();
    let of_key = |name: &str, value: f64| {
        let error = store.set_key_hyperparameter(1u64, name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        error.message().to_owned()
    };
    assert!(of_key("learning_rate", 1.0).contains("there are lr_mult and wd_mult"));
    assert!(of_key("lr_mult", -1.0).contains("lr_mult is -1; it must be a number from 0"));
    store.set_key_hyperparameter(1u64, "wd_mult", 0.0).unwrap();
}
