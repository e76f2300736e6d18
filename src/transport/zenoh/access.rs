//! Zenoh settings from the credentials of a process: what it presents, what it requires of peers, and which
//! identity may send to which. Also called: access control.
//!
//! Zenoh names contain the sender: `kvstore/<to>/<who>/<from>`, where `<who>` is the identity on the
//! credential. Zenoh admits no message under another identity, so that the receiver can rely on it.

use std::fs::File;
use std::os::fd::AsRawFd;

use serde_json::{Value, json};

use super::names::ProcessNames;
use crate::credentials::{CredentialKind, Credentials, Identity, Tls};

/// Kinds of messages that the rules cover, by Zenoh's names.
const MESSAGES: [&str; 4] =
    ["put", "declare_subscriber", "liveliness_token", "declare_liveliness_subscriber"];

/// Settings of a session, and a file that must exist while it is opened.
#[derive(Default)]
pub(super) struct AccessSettings {
    pub(super) settings: Vec<(&'static str, Value)>,
    pub(super) users: Option<File>,
}

/// For a session that dials the listener `to`.
pub(super) fn of_caller(
    credentials: &Credentials,
    names: &ProcessNames,
    to: &str,
) -> AccessSettings {
    let mut settings = Vec::new();
    if let Some((user, password)) = credentials.login() {
        settings.push(("transport/auth/usrpwd", json!({"user": user, "password": password})));
    }
    if let Some(tls) = &credentials.tls {
        settings.push((
            "transport/link/tls",
            json!({
                "root_ca_certificate": tls.ca_file,
                "connect_certificate": tls.cert_file,
                "connect_private_key": tls.key_file,
                "enable_mtls": true,
                "verify_name_on_connect": tls.verify_names,
                "so_sndbuf": crate::transport::SOCKET_BYTES,
                "so_rcvbuf": crate::transport::SOCKET_BYTES,
            }),
        ));
        settings.push(("access_control", called(credentials, names, to)));
    }
    AccessSettings { settings, users: None }
}

/// The listener must have the identity that it was dialed for. Zenoh trusts every public authority too, none
/// of which certifies such a name.
fn called(credentials: &Credentials, names: &ProcessNames, to: &str) -> Value {
    let wanted = if names.is_root(to) { CredentialKind::Scheduler } else { CredentialKind::Server };
    let who: Vec<Identity> = credentials.names().filter(|name| name.kind == wanted).collect();
    let subject = json!({"id": "called", "cert_common_names": texts(&who)});
    let (me, them) = (names.place_of_own(), names.place(to));
    let puts = who.iter().map(|who| format!("kvstore/{me}/{who}/*")).collect::<Vec<_>>();
    let alive = who.iter().map(|who| format!("kvstore-alive/{who}/*")).collect::<Vec<_>>();
    let rules = vec![
        rule("puts", "ingress", &["put"], &puts),
        rule("listens", "ingress", &["declare_subscriber"], &[format!("kvstore/{them}/**")]),
        rule("lives", "ingress", &["liveliness_token"], &alive),
        rule("asks", "ingress", &["declare_liveliness_subscriber"], &["kvstore-alive/**".into()]),
        rule("ours", "egress", &MESSAGES, &["kvstore/**".into(), "kvstore-alive/**".into()]),
    ];
    control(&rules, &subject)
}

/// For the session of a process that listens.
pub(super) fn of_listener(
    credentials: &Credentials,
    names: &ProcessNames,
) -> std::io::Result<AccessSettings> {
    let mut access = AccessSettings::default();
    if let Some(tls) = &credentials.tls {
        access.settings.push(("transport/link/tls", listening(tls)));
    }
    if let Some(users) = credentials.logins() {
        let file = crate::sys::memory_file(users.as_bytes())?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        access.settings.push(("transport/auth/usrpwd", json!({"dictionary_file": path})));
        access.users = Some(file);
    }
    access.settings.push(("access_control", callers(credentials, names)));
    Ok(access)
}

fn listening(tls: &Tls) -> Value {
    json!({
        "root_ca_certificate": tls.ca_file,
        "listen_certificate": tls.cert_file,
        "listen_private_key": tls.key_file,
        "enable_mtls": true,
        "so_sndbuf": crate::transport::SOCKET_BYTES,
        "so_rcvbuf": crate::transport::SOCKET_BYTES,
    })
}

/// Each peer sends as itself only, and receives only the messages addressed to it.
fn callers(credentials: &Credentials, names: &ProcessNames) -> Value {
    let me = names.place_of_own();
    let own = names.speaker();
    let (mut rules, mut subjects, mut policies) = (Vec::new(), Vec::new(), Vec::new());
    rules.push(rule(
        "asks",
        "ingress",
        &["declare_liveliness_subscriber"],
        &["kvstore-alive/**".into()],
    ));
    rules.push(rule(
        "ours",
        "egress",
        &["declare_subscriber", "liveliness_token"],
        &[format!("kvstore/{me}/**"), format!("kvstore-alive/{own}")],
    ));
    rules.push(rule(
        "seeks",
        "egress",
        &["declare_liveliness_subscriber"],
        &["kvstore-alive/**".into()],
    ));
    for who in credentials.names().filter(|who| may_call(credentials.identity, *who)) {
        let name = who.to_string();
        // Processes that listen have an address for a name.
        let theirs = if who.listens() { "kvstore/-/*".into() } else { format!("kvstore/{who}/*") };
        let [into, out, lives, hears] =
            ["into", "out", "lives", "hears"].map(|rule| format!("{rule} {name}"));
        rules.push(rule(&into, "ingress", &["put"], &[format!("kvstore/{me}/{who}/*")]));
        rules.push(rule(&hears, "ingress", &["declare_subscriber"], &[format!("{theirs}/**")]));
        let alive = [format!("kvstore-alive/{who}/*")];
        rules.push(rule(&lives, "ingress", &["liveliness_token"], &alive));
        rules.push(rule(&out, "egress", &["put"], &[format!("{theirs}/{own}")]));
        let mut subject = json!({"id": name});
        if credentials.tls.is_some() {
            subject["cert_common_names"] = json!([name]);
        }
        if credentials.has_token() {
            subject["usernames"] = json!([name, Identity::any(who.kind).to_string()]);
        }
        subjects.push(subject);
        policies.push(json!({
            "rules": ["asks", "ours", "seeks", into, hears, lives, out], "subjects": [name],
        }));
    }
    json!({
        "enabled": true, "default_permission": "deny",
        "rules": rules, "subjects": subjects, "policies": policies,
    })
}

/// Servers and workers dial the scheduler, workers dial servers.
fn may_call(listener: Identity, who: Identity) -> bool {
    who.kind != CredentialKind::Scheduler
        && (listener.kind == CredentialKind::Scheduler || !who.listens())
}

fn control(rules: &[Value], subject: &Value) -> Value {
    let ids: Vec<Value> = rules.iter().map(|rule| rule["id"].clone()).collect();
    json!({
        "enabled": true, "default_permission": "deny", "rules": rules, "subjects": [subject],
        "policies": [{"rules": ids, "subjects": [subject["id"]]}],
    })
}

fn rule(id: &str, flow: &str, messages: &[&str], names: &[String]) -> Value {
    json!({
        "id": id, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": names,
    })
}

fn texts(names: &[Identity]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}
