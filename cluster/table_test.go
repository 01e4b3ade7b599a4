package cluster

import (
	"os"
	"strings"
	"testing"

	"github.com/kolo-ccl/kolo"

	"github.com/stretchr/testify/require"
)

const textV1 = `{"status":"completed","version":"1.0","server_count":"2","server_list":[
 {"server_id":"a","host_ip":"172.16.0.100","device":[{"device_id":"0","device_ip":"192.168.1.6","host_port":"16665","rank_id":"0"}]},
 {"server_id":"b","host_ip":"172.16.0.101","device":[{"device_id":"4","device_ip":"192.168.2.6","device_port":"16666","rank_id":"1"}]}]}`

const textV12 = `{"status":"completed","version":"1.2","server_count":"1","server_list":[
 {"server_id":"a","host_ip":"172.16.0.100","device":[{"device_id":"0","super_device_id":"0","rank_id":"1"},{"device_id":"1","super_device_id":"1","rank_id":"0"}]}],
 "super_pod_list":[{"super_pod_id":"9","server_list":[{"server_id":"a"}]}]}`

const textV2 = `{"version":"2.0","status":"completed","rank_count":1,"rank_list":[{"rank_id":0,"local_id":0,"device_id":3,"host_port":60001,"level_list":[
 {"net_layer":0,"net_instance_id":"pod0","net_type":"TOPO_FILE_DESC","rank_addr_list":[{"addr_type":"EID","addr":"00"},{"addr_type":"IPV4","addr":"172.16.0.10","ports":["1/0"]}]},
 {"net_layer":1,"net_instance_id":"az0","net_type":"CLOS","rank_addr_list":[{"addr_type":"IPV4","addr":"172.16.0.15","ports":["0/4"]}]}]}]}`

func TestRankTables(t *testing.T) {
	for text, want := range map[string]*Table{
		textV1: {Version: "1.0", Ranks: []TableRank{{Server: "a", HostIP: "172.16.0.100", HostPort: 16665, DeviceIP: "192.168.1.6"},
			{Server: "b", HostIP: "172.16.0.101", Device: 4, DeviceIP: "192.168.2.6"}}},
		textV12: {Version: "1.2", Ranks: []TableRank{{Server: "a", Pod: "9", HostIP: "172.16.0.100", Device: 1}, {Server: "a", Pod: "9", HostIP: "172.16.0.100"}}},
		textV2:  {Version: "2.0", Ranks: []TableRank{{Server: "pod0", Pod: "az0", HostIP: "172.16.0.10", HostPort: 60001, Device: 3}}},
	} {
		got, err := ParseTable([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestRankTablesThatAreWrong(t *testing.T) {
	for _, c := range [][3]string{
		{`"completed"`, `"initializing"`, "only a table that is completed"},
		{`"1.0"`, `"1.1"`, `version "1.1"; known: 1.0, 1.2, 2.0`},
		{`"rank_id":"1"`, `"rank_id":"0"`, "rank_id 0 stands there twice"},
		{`"rank_id":"1"`, `"rank_id":"2"`, "rank_id 2 in a table of 2 ranks"},
		{`"rank_id":"1"`, `"rank_id":"one"`, `"one" is no number`},
		{`,"rank_id":"1"`, ``, "has no rank_id"},
		{`"server_count":"2"`, `"server_count":"3"`, "server_count is 3, and server_list has 2"},
		{`"server_id":"b"`, `"server_id":"a"`, `server_id "a" is empty or stands there twice`},
		{`{"status"`, `["status"`, "invalid character"},
	} {
		text := strings.Replace(textV1, c[0], c[1], 1)
		require.NotEqual(t, textV1, text)
		_, err := ParseTable([]byte(text))
		require.ErrorIs(t, err, kolo.ErrArgument)
		require.ErrorContains(t, err, c[2])
	}
}

func FuzzRankTable(f *testing.F) {
	for _, s := range []string{textV1, textV12, textV2} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseTable(b)
		if err == nil && len(table.Ranks) == 0 {
			t.Error("a table without ranks")
		}
	})
}

// What is named to be read may have no end.
func TestRankTableWithoutEnd(t *testing.T) {
	if _, err := os.Stat("/dev/zero"); err != nil {
		t.Skip("no /dev/zero here: ", err)
	}
	_, err := ReadTable("/dev/zero")
	require.ErrorIs(t, err, kolo.ErrLimit)
}
