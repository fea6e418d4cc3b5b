"""What is secret: names, shapes, places; and what is ordinary text."""

from __future__ import annotations

import base64
import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from pilothouse.options import Options, render
from pilothouse.options.secrets import MASK, Redactor, invocation_secrets, is_secret_name, mask, mask_text

KEY = "planted.0123456789/+abcdef"
SECRET = """DB_PASS MYSQL_PASS SSHPASS SMTP_PASS PASS DB_PASSWD MYSQL_PWD DB_PW JWT MY_JWT CREDS CRED AWS_CREDENTIALS
CONNECTION_STRING ConnectionString DOCKER_AUTH_CONFIG SENTRY_DSN DSN SLACK_WEBHOOK_URL API_KEY_URL NPM_AUTH x-api-key
apiKeyHelper clientSecret client-secret --token --api-key --password Authorization Proxy-Authorization Cookie
SSH_PRIVATE_KEY ACCESS_KEYS MYAPIKEY GITHUB_PAT AZURE_SAS SAS SAS_URL BLOB_SAS_URL OTP TOTP TOTP_SEED GITHUB_OTP
MNEMONIC WALLET_MNEMONIC SEED_PHRASE PEM TLS_PEM STRIPE_SK MYPAT PAT ROOTPW PW PGPASSWORD sasUrl totpSeed
AWS_ACCESS_KEY_ID"""
ORDINARY = """PWD OLDPWD PATH HOME BYPASS COMPASS KEYBOARD SSH_AUTH_SOCK TOKEN_FILE SECRET_PATH PASSENGER model
SASS SASSY_URL DISASTER OPTION OTPS COMPAT compat POTPOURRI SEED RANDOM_SEED STEM PEMBROKE SK DESK TASK RISK DISK
PATH_PATTERN patch pattern HTTP_PORT TMP_DIR environment ENVIRONMENT HEADER HTTP_VERSION UPWARD
keybindings --model --max-turns author passive pwdx dsnap hotkeys DONKEY_KONG"""


@pytest.mark.requirement("E76")
def test_names() -> None:
    assert [name for name in SECRET.split() if not is_secret_name(name)] == []
    assert [name for name in ORDINARY.split() if is_secret_name(name)] == []


SHAPES = [
    "sk-ant-api03-abcDEF_012-345",
    "sk-proj-abcdefghijklmnopqrstuv",
    "ghp_0123456789abcdef",
    "gho_0123456789abcdef",
    "ghs_0123456789abcdef",
    "github_pat_0123456789_abcdef",
    "glpat-0123456789abcdef",
    "xoxb-123456789-abcdef",
    "xoxp-123456789-abcdef",
    "AKIA0123456789ABCDEF",
    "ASIA0123456789ABCDEF",
    "AIza0123456789abcdefghijklmnop",
    "ya29.0123456789abcdef",
    "npm_0123456789abcdefghijklmnop",
    "pypi-0123456789abcdefghijklmnop",
    "hf_0123456789abcdefghij",
    "sk_live_0123456789abcdef",
    "rk_live_0123456789abcdef",
    "sk_test_51H0123456789abcdef",
    "whsec_0123456789abcdefghij",
    "hvs.CAESIJ0123456789abcdefghij",
    "gsk_0123456789abcdefghijklmn",
    "xai-0123456789abcdefghijklmn",
    "dckr_pat_0123456789abcdefghij",
    "SG.0123456789abcdef.0123456789abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("key", SHAPES)
def test_shapes(key: str) -> None:
    found: list[str] = []
    for form in ("{}", "the key is {}, it is", '{{"a": "{}"}}', "A={}\n", "https://x/{}"):
        assert mask_text(form.format(key), found.append) == form.format(MASK)
    assert found == [key] * 5
    assert Redactor(()).redact(f"x {key} y") == f"x {MASK} y"


@pytest.mark.parametrize(
    "text",
    [
        "task-ant-hill-and-more-of-it",
        "sk-learn",
        "disk-0123456789abcdefghijklmnop",
        "ghp_short",
        "eyJ is how a JWT begins",
        "https://example.com/a?page=2&sort=key",
        "git@github.com:a/b.git",
        "ssh://git@example.com/x",
        "sorted(x, key=len); token = next(it)",
        "the bearer of this letter",
        "Bearer authentication-is-used",
        "mail me@example.com: now",
        "Authorization: none; basic knowledge-of-http is enough",
        "Use basic authentication, or Basic dXNlcg for short",
        "risk_live_dashboards_of_today",
        "def sk_test_helper_function(): ...",
        "hvs.calculate_distance(a, b)",
        "xai-explainable-methods-of-today",
        "gsk_is_a_company",
        "whsec_ is how webhook keys begin",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert mask_text(text) == text
    assert mask([text]) == [text]


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pa@ss:wd@h/x", "https://me:[redacted]@h/x"),
        ("postgresql://:hidden@h:5/x", "postgresql://:[redacted]@h:5/x"),
        ("x?key=abc&b=2", "x?key=[redacted]&b=2"),
        ("x?b=2&access_token=abc#c", "x?b=2&access_token=[redacted]#c"),
        ("x?X-Amz-Signature=abc&sig=def", "x?X-Amz-Signature=[redacted]&sig=[redacted]"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic [redacted]"),
        ('{"Authorization": "Basic dXNlcjpwYXNzd29yZDEyMw=="}', '{"Authorization": "Basic [redacted]"}'),
        (r'"{\"Authorization\": \"Basic dXNlcjpwYXNz\"}"', r'"{\"Authorization\": \"Basic [redacted]\"}"'),
        ('curl -H "Authorization: Bearer abc.0123456789"', 'curl -H "Authorization: Bearer [redacted]"'),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert mask_text(text) == shown


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("""curl -d '{"password":"KEY", "n": 1}' x""", """curl -d '{"password":[redacted], "n": 1}' x"""),
        (r"""curl -d "{\"client_secret\": \"KEY\"}" x""", r"""curl -d "{\"client_secret\": [redacted]}" x"""),
        ("""python -c "d = {'api_key': 'KEY'}" """, """python -c "d = {'api_key': [redacted]}" """),
        ('curl -H "Authorization: token KEY"', 'curl -H "Authorization: token [redacted]"'),
        ("curl -H 'authorization: digest KEY'", "curl -H 'authorization: digest [redacted]'"),
        *((text, text) for text in (
            """curl -d '{"max_tokens": 100}'""", """curl -d '{"password": "$PW"}'""", 'grep -r "token": .',
            r"""curl -d "{\"password\": \"$PW\"}" """,
        )),
    ],
)  # fmt: skip
def test_names_in_quotes_inside_of_a_command(command: str, shown: str) -> None:
    assert mask({"command": command.replace("KEY", KEY)}) == {"command": shown}


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["--token", KEY, "--level", "2"], ["--token", MASK, "--level", "2"]),
        (["--token", "--level", "2"], ["--token", "--level", "2"]),
        (
            [f"--api-key={KEY}", f"DB_PASS={KEY}", "-e", f"TOKEN={KEY}"],
            [f"--api-key={MASK}", f"DB_PASS={MASK}", "-e", f"TOKEN={MASK}"],
        ),
        (
            ["-H", f"Authorization: {KEY}", "-H", f"X-Api-Key:{KEY}"],
            ["-H", f"Authorization: {MASK}", "-H", f"X-Api-Key:{MASK}"],
        ),
        ([f"--url=https://a:{KEY.replace('/', '')}@h"], [f"--url=https://a:{MASK}@h"]),
        ({"env": {"A": "b"}, "x": [{"headers": {"C": "d"}}]}, {"env": {"A": MASK}, "x": [{"headers": {"C": MASK}}]}),
        ({"env": KEY, "headers": [KEY]}, {"env": MASK, "headers": MASK}),
        ({"apiKeyHelper": KEY, "maxTokens": 5, "model": "x"}, {"apiKeyHelper": MASK, "maxTokens": 5, "model": "x"}),
        (("--password", KEY), ("--password", MASK)),
        ({"apiKeys": [KEY, {"a": KEY}], "keys": []}, {"apiKeys": [MASK, {"a": KEY}], "keys": []}),
        (f'{{"env": {{"A": "{KEY}"}}}}', '{"env": {"A": "[redacted]"}}'),
        ([f'--settings={{"env": {{"A": "{KEY}"}}}}'], ['--settings={"env": {"A": "[redacted]"}}']),
        ({"password": {"type": "string"}}, {"password": {"type": "string"}}),
        (
            [f"--header=X-Api-Key: {KEY}", f"--env=DB_PASS={KEY}", "--a=b=c", f"{'a=' * 1000}TOKEN={KEY}"],
            [f"--header=X-Api-Key: {MASK}", f"--env=DB_PASS={MASK}", "--a=b=c", f"{'a=' * 52}{MASK}"],
        ),
        (
            {"args": ["-c", f"export TOKEN={KEY}; run --api-key {KEY} --max-tokens 5", f"Server=x;Password={KEY};"]},
            {"args": ["-c", f"export TOKEN={MASK}; run --api-key {MASK} --max-tokens 5", f"Server=x;Password={MASK};"]},
        ),
        (
            {"command": f"curl -H 'Authorization: Bearer {KEY}' -H \"X-Api-Key: $KEY\" --key-file=x --pass '{KEY}'"},
            {"command": f"curl -H 'Authorization: Bearer {MASK}' -H \"X-Api-Key: $KEY\" --key-file=x --pass {MASK}"},
        ),
        (["Token: what this text is about"], ["Token: what this text is about"]),
        (5, 5),
        (None, None),
    ],
)
def test_nested_values(value: Any, shown: Any) -> None:
    before = repr(value)
    assert mask(value) == shown
    assert repr(value) == before


PLACES = f"""curl -u me:{KEY} https://h
curl -sS -u 'me:{KEY}' https://h
curl -ume:{KEY} h
curl -su me:{KEY} h
curl --user "me:{KEY}" h
/usr/bin/curl --proxy-user=me:{KEY} h
cd x && curl -U me:{KEY} h
x=$( curl -u me:{KEY} h )
mysql -h db -u root -p{KEY} shop
mysqldump -p'{KEY}' shop > x.sql
sshpass -p {KEY} ssh -p 2222 host
sshpass -p{KEY} scp a b
docker login -u me -p {KEY} registry.example.com
helm registry login -p{KEY} h
redis-cli -h db -a {KEY} ping
ldapsearch -x -D cn=me -w {KEY} cn=you
zip -r -P {KEY} a.zip a
unzip -P{KEY} a.zip
PGPASSWORD={KEY} psql
env PGPASSWORD='{KEY}' psql
wget --user=me --password={KEY} https://h
wget --http-password {KEY} https://h"""


@pytest.mark.requirement("E76")
@pytest.mark.parametrize("command", PLACES.splitlines())
def test_places_in_a_command(command: str) -> None:
    shown = mask({"command": command})["command"]
    assert shown == command.replace(f"'{KEY}'", MASK).replace(KEY, MASK) or shown == command.replace(KEY, MASK)
    assert KEY not in str(mask({"hooks": {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}}))
    program, *words = command.replace("'", "").replace('"', "").split(" ")
    assert KEY not in str(mask({"command": program, "args": words}))
    assert KEY not in str(mask({"args": ["-c", command]}))
    options = Options(mcp_servers={"a": {"command": program, "args": words}})
    assert KEY in invocation_secrets(render(options, {}))


@pytest.mark.parametrize(
    "command",
    [
        "docker run -u 1000:1000 -p 8080:80 image",
        "docker run --user app:appgroup image",
        "rsync -u host:/data/file .",
        "sort -u file:with:colons",
        "curl -u $USER:$PASSWORD https://h",
        "curl -u me https://h",
        "curl -X PUT https://h:8080/a",
        "curl h; git push -u origin:feature",
        "(curl h) && chown -u a:b c",
        "mysql -p shop",
        "mysql -u root --port=3306 -P3306",
        "ssh -p 2222 host",
        "sshpass -f file ssh -p 2222 host",
        "sshpass -p $PW ssh -p 2222 host",
        "docker ps; mkdir -p build/login",
        "npm login -p 8080",
        "redis-cli -a $PW -p 6379",
        "ldapsearch -W -x cn=you",
        "mkdir -p build && cp -u a:b c",
        "echo 'it''s",
        'grep "unfinished',
    ],
)
def test_ordinary_commands_stay(command: str) -> None:
    assert mask({"command": command}) == {"command": command}
    if set(command) & set(";&|("):
        return  # a list has the arguments of one program
    program, *words = command.split(" ")
    assert mask({"command": program, "args": words}) == {"command": program, "args": words}


@pytest.mark.requirement("E76")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"args": ["-u", f"me:{KEY}"]}, {"args": ["-u", f"me:{MASK}"]}),
        ({"args": ["-u", "1000:1000", "-u", "a:b", "-u", "h:/a/long/path"]},) * 2,
        *[
            ({name: {"A": KEY}}, {name: {"A": MASK}})
            for name in ("ENV", "environment", "http_headers", "httpHeaders", "env_vars", "envVars", "Headers")
        ],
        ({"environment": [f"A={KEY}", "B"]}, {"environment": [f"A={MASK}", "B"]}),
        ({"environment": "production", "env_vars": ["PATH", "HOME"], "ENV": "test"},) * 2,
    ],
)
def test_fields_that_hold_keys(value: Any, shown: Any) -> None:
    assert mask(value) == shown


def test_deep_values_end() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    assert MASK in str(mask(value))
    for _ in range(100_000):
        value = {"key": [value]}
    assert MASK in str(mask(value))


@pytest.mark.requirement("E76")
def test_all_that_a_child_gets_is_known() -> None:
    names = ("env", "plain", "header", "arg", "bound", "url", "query", "helper", "managed", "extra")
    keys = {name: f"{name}.{KEY}" for name in names}
    far = f"https://u:{quote(keys['url'], safe='')}@h?key={keys['query']}"
    options = Options(
        env={"DB_PASS": keys["env"], "PLAIN": f"ftp://a:{quote(keys['plain'], safe='')}@h"},
        mcp_servers={
            "a": {"command": "x", "args": ["--token", keys["arg"], f"--key={keys['bound']}"]},
            "b": {"type": "http", "url": far, "headers": {"Authorization": f"Bearer {keys['header']}"}},
        },
        settings={"apiKeyHelper": keys["helper"], "env": {"LEVEL": "ordinary-value"}},
        managed_settings={"env": {"X_TOKEN": keys["managed"]}},
        extra_args={"api-key": keys["extra"]},
    )  # fmt: skip
    found = invocation_secrets(render(options, {}))
    assert [name for name, key in keys.items() if key not in found and quote(key, safe="") not in found] == []
    assert "ordinary-value" not in found


@pytest.mark.requirement("E76")
def test_forms_of_known_values() -> None:
    redact = Redactor([KEY, 'a"quoted\\value']).redact
    for form in (KEY, quote(KEY, safe=""), json.dumps('a"quoted\\value')):
        assert "0123" not in redact(f"x {form} y")
        assert "quoted" not in redact(f"x {form} y")
    for extra in ("", "x", "xy", "xyz"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            assert encode(KEY.encode()).decode()[:20] not in redact(f"x {encode((KEY + extra).encode()).decode()}")


HOSTILE = """://a: ?a= sk- eyJa. xoxb- Bearer_ -----BEGIN_PRIVATE_KEY----- --token= a@ earer_ SG. Authorization:_
Authorization:_Basic_ hvs. gsk_ whsec_ sk_test_ curl_ curl_-u_ curl_-u_a: mysql_-p docker_login_ sshpass_-p_ " '
\\ \\" '\\'" $( -u_
-a -uuuu --user= a= A_ env_"""


@pytest.mark.parametrize("piece", HOSTILE.split())
def test_hostile_text_takes_no_time(piece: str) -> None:
    """300,000 characters; the limit is for a busy machine: quadratic time is minutes."""
    text = (piece.replace("_", " ") * 300_000)[:300_000]
    began = time.process_time()
    mask_text(text)
    mask({"command": f"curl {text}"})
    mask({"args": [text, "-u", text]})
    assert time.process_time() - began < 5
