"""HTTP clients of other languages, each as a program of a few lines.

A program is given an address, a body and headers ("Name: value"), posts once and prints the status. It is told of us by
what `paywitness ca env` prints, and by nothing else.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

ALL_WANTED = "PAYWITNESS_ALL_CLIENTS"  # set by `make clients`: then a client that is not installed is a failure

_CURL = """
url=$1 body=$2; shift 2
for header in "$@"; do set -- "$@" --header "$header"; shift; done
exec curl -sS --max-time 30 --output /dev/null --write-out '%{http_code}\\n' --data "$body" "$@" "$url"
"""
_WGET = """
url=$1 body=$2; shift 2
for header in "$@"; do set -- "$@" "--header=$header"; shift; done
wget --server-response --tries=1 --timeout=30 --output-document=/dev/null --post-data="$body" "$@" "$url" 2>&1 |
  sed -n 's|^ *HTTP/1.1 \\([0-9]*\\).*|\\1|p' | tail -n 1
"""
_PERL_LWP = r"""
use LWP::UserAgent;
my ($url, $body, @headers) = @ARGV;
my $agent = LWP::UserAgent->new(timeout => 30);
print $agent->post($url, (map { split /: /, $_, 2 } @headers), Content => $body)->code, "\n";
"""
_PERL_TINY = r"""
use HTTP::Tiny;
my ($url, $body, @headers) = @ARGV;
my $client = HTTP::Tiny->new(timeout => 30, verify_SSL => 1);
my $answer = $client->post($url, {content => $body, headers => {map { split /: /, $_, 2 } @headers}});
print $answer->{status}, "\n";
print STDERR $answer->{content} if $answer->{status} == 599;
"""
_PHP_CURL = r"""
[$url, $body] = array_slice($argv, 1, 2);
$call = curl_init($url);
curl_setopt_array($call, [CURLOPT_POSTFIELDS => $body, CURLOPT_HTTPHEADER => array_slice($argv, 3),
    CURLOPT_RETURNTRANSFER => true, CURLOPT_TIMEOUT => 30]);
if (curl_exec($call) === false) { fwrite(STDERR, curl_error($call)); }
echo curl_getinfo($call, CURLINFO_RESPONSE_CODE), "\n";
"""
_PHP_STREAMS = r"""
[$url, $body] = array_slice($argv, 1, 2);
$http = ['method' => 'POST', 'content' => $body, 'header' => array_slice($argv, 3), 'timeout' => 30];
if (strncmp($url, 'http://127.0.0.1', 16) !== 0) {
    $http += ['proxy' => str_replace('http://', 'tcp://', getenv('HTTPS_PROXY')), 'request_fulluri' => true];
}
file_get_contents($url, false, stream_context_create(['http' => $http]));
echo explode(' ', $http_response_header[0])[1], "\n";
"""
_RUBY = r"""
require 'net/http'
url, body, *headers = ARGV
uri = URI(url)
Net::HTTP.start(uri.host, uri.port, use_ssl: uri.scheme == 'https', read_timeout: 30) do |http|
  puts http.post(uri.request_uri, body, headers.to_h { |header| header.split(': ', 2) }).code
end
"""
_GO = r"""package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	request, err := http.NewRequest("POST", os.Args[1], strings.NewReader(os.Args[2]))
	if err != nil {
		panic(err)
	}
	for _, header := range os.Args[3:] {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	fmt.Println(response.StatusCode)
}
"""
_JAVA_URL = r"""
import java.net.*;
public class Post {
  public static void main(String[] given) throws Exception {
    HttpURLConnection call = (HttpURLConnection) new URL(given[0]).openConnection();
    call.setRequestMethod("POST");
    call.setDoOutput(true);
    for (int i = 2; i < given.length; i++) {
      String[] header = given[i].split(": ", 2);
      call.setRequestProperty(header[0], header[1]);
    }
    call.getOutputStream().write(given[1].getBytes("UTF-8"));
    System.out.println(call.getResponseCode());
  }
}
"""
_JAVA_HTTP = r"""
import java.net.*;
import java.net.http.*;
public class Post {
  public static void main(String[] given) throws Exception {
    HttpRequest.Builder call = HttpRequest.newBuilder(URI.create(given[0]));
    for (int i = 2; i < given.length; i++) {
      String[] header = given[i].split(": ", 2);
      call.header(header[0], header[1]);
    }
    call.POST(HttpRequest.BodyPublishers.ofString(given[1]));
    HttpClient client = HttpClient.newHttpClient();
    System.out.println(client.send(call.build(), HttpResponse.BodyHandlers.discarding()).statusCode());
  }
}
"""


@dataclass(frozen=True)
class ForeignClient:
    """How to run a program of it."""

    program: str
    command: tuple[str, ...]  # with {program} for the program's text, or {file} for a file of it
    needs: tuple[str, ...]  # commands that are there if it is installed
    file_name: str = ""
    package: str = ""  # what brings it, in Debian's words


CLIENTS = {
    "curl": ForeignClient(_CURL, ("sh", "-c", "{program}", "curl"), ("curl",), package="curl"),
    "wget": ForeignClient(_WGET, ("sh", "-c", "{program}", "wget"), ("wget",), package="wget"),
    "perl LWP": ForeignClient(
        _PERL_LWP,
        ("perl", "-e", "{program}"),
        ("perl", "lwp-request"),
        package="libwww-perl, liblwp-protocol-https-perl",
    ),
    "perl HTTP::Tiny": ForeignClient(_PERL_TINY, ("perl", "-e", "{program}"), ("perl", "lwp-request"), package="perl"),
    "php curl": ForeignClient(_PHP_CURL, ("php", "-r", "{program}", "--"), ("php",), package="php-cli, php-curl"),
    "php streams": ForeignClient(_PHP_STREAMS, ("php", "-r", "{program}", "--"), ("php",), package="php-cli"),
    "ruby": ForeignClient(_RUBY, ("ruby", "-e", "{program}"), ("ruby",), package="ruby"),
    "go": ForeignClient(_GO, ("go", "run", "{file}"), ("go",), "post.go", package="golang-go"),
    "java HttpURLConnection": ForeignClient(
        _JAVA_URL, ("java", "{java}", "{file}"), ("java", "keytool"), "Post.java", package="default-jdk-headless"
    ),
    "java HttpClient": ForeignClient(
        _JAVA_HTTP, ("java", "{java}", "{file}"), ("java", "keytool"), "Post.java", package="default-jdk-headless"
    ),
}


def installed(name: str) -> ForeignClient:
    """The client. One that is not installed is skipped, or a failure if all are wanted."""
    client = CLIENTS[name]
    missing = [command for command in client.needs if shutil.which(command) is None]
    if missing and os.environ.get(ALL_WANTED):
        pytest.fail(f"{', '.join(missing)} not installed; Debian: {client.package}")
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; `make clients` installs {client.package}")
    return client


def command_of(client: ForeignClient, folder: Path, java_options: list[str]) -> list[str]:
    """What runs it; its arguments follow."""
    file = folder / client.file_name if client.file_name else folder
    if client.file_name:
        file.write_text(client.program)
    command: list[str] = []
    for part in client.command:
        if part == "{java}":
            command += java_options
        else:
            command.append({"{program}": client.program, "{file}": str(file)}.get(part, part))
    return command


def java_lines(told: str) -> str:
    """The commands that `paywitness ca env` gives for Java in its comments, up to the command that is yours to end."""
    lines = [line.removeprefix("#").strip() for line in told.splitlines()]
    start = next(number for number, line in enumerate(lines) if re.match(r"Java +paywitness ca", line))
    return "\n".join([re.sub(r"^Java +", "", lines[start]), *lines[start + 1 :]])
