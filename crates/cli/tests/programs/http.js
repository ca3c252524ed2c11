// An HTTP server that says how much it was sent, and a client with connections that are kept.
//   http.js serve PORT
//   http.js get ADDRESS PORT
const http = require('http');
const [, , what, ...rest] = process.argv;

function serve(port) {
	http.createServer((request, response) => {
		let length = 0;
		request.on('data', (data) => { length += data.length; });
		request.on('end', () => response.end('came ' + length));
	}).listen(port, '0.0.0.0');
}

function get(address, port) {
	const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
	let left = 40;
	const one = (number) => {
		const options = { host: address, port, method: 'POST', agent };
		const request = http.request(options, (response) => {
			let text = '';
			response.on('data', (data) => { text += data; });
			response.on('end', () => {
				if (text !== 'came ' + number * 1000)
					throw new Error(number + ': ' + text);
				if (--left === 0) {
					console.log('40 answers');
					agent.destroy();
				}
			});
		});
		request.end('x'.repeat(number * 1000));
	};
	for (let number = 1; number <= 40; number++)
		one(number);
}

if (what === 'serve')
	serve(+rest[0]);
else
	get(rest[0], +rest[1]);
